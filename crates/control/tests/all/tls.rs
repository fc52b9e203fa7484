//! An etcd that is reached over TLS, and lets in only whom it knows by certificate.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use control::catalogue::{Catalogue, Error, Etcd, EtcdOptions, Prefix, Revision, TlsFiles};
use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};

use crate::cluster::Cluster;
use crate::words::*;

struct Authority {
    certificate: X509,
    key: PKey<Private>,
}

/// A certificate of `name`, signed by an authority or by itself.
fn certify(name: &str, by: Option<&Authority>) -> Authority {
    let key =
        PKey::from_ec_key(EcKey::generate(&EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap()).unwrap()).unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_text("CN", name).unwrap();
    let subject = subject.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    let serial = BigNum::from_u32(name.len() as u32 + 1).unwrap().to_asn1_integer().unwrap();
    builder.set_serial_number(&serial).unwrap();
    builder.set_subject_name(&subject).unwrap();
    builder.set_issuer_name(by.map_or(&subject, |by| by.certificate.subject_name())).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    match by {
        None => builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap(),
        Some(by) => {
            let context = builder.x509v3_context(Some(&by.certificate), None);
            let names = SubjectAlternativeName::new().ip("127.0.0.1").dns("localhost").build(&context).unwrap();
            builder.append_extension(names).unwrap();
        }
    }
    builder.sign(by.map_or(&key, |by| &by.key), MessageDigest::sha256()).unwrap();
    Authority { certificate: builder.build(), key }
}

fn write(folder: &Path, name: &str, what: &Authority) -> (PathBuf, PathBuf) {
    let (certificate, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    std::fs::write(&certificate, what.certificate.to_pem().unwrap()).unwrap();
    std::fs::write(&key, what.key.private_key_to_pem_pkcs8().unwrap()).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    (certificate, key)
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_are_known_by_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, stranger) = (certify("authority", None), certify("stranger", None));
    let (server, client) = (certify("server", Some(&authority)), certify("client", Some(&authority)));
    let (authority, _) = write(folder.path(), "authority", &authority);
    let (stranger, _) = write(folder.path(), "stranger", &stranger);
    let (server, server_key) = write(folder.path(), "server", &server);
    let client = write(folder.path(), "client", &client);
    let more = [("cert-file", &server), ("key-file", &server_key), ("trusted-ca-file", &authority)];
    let mut more: Vec<String> = more.iter().map(|(flag, file)| format!("--{flag}={}", file.display())).collect();
    more.push("--client-cert-auth".into());
    let cluster = Cluster::begin(1, "https", more);
    let options = |authority: &Path, certificate: Option<(PathBuf, PathBuf)>, seconds: u64| EtcdOptions {
        tls: TlsFiles { authority: Some(authority.into()), certificate },
        time_limit: Duration::from_secs(seconds),
        ..EtcdOptions::new(cluster.endpoints())
    };
    // It is not there yet: the first operation waits for it.
    let catalogue = Etcd::open(options(&authority, Some(client.clone()), 120)).await.unwrap();
    let revision = change(&catalogue, vec![put("a", "1")]).await;
    assert_eq!(next(&mut catalogue.watch(Prefix::all(), Revision(revision.0 - 1))).await.revision, revision);
    for (wrong, words) in
        [(options(&stranger, Some(client), 3), "certificate verify failed"), (options(&authority, None, 3), "")]
    {
        let Err(told) = Etcd::open(wrong).await else { panic!("it was let in") };
        assert!(matches!(&told, Error::NoAnswer { why, .. } if why.contains(words)), "{told}");
    }
}

/// Whom the machine trusts is told by the environment, which must be so before a process begins: the second half is this program
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_named_is_trusted_instead_of_the_machines() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, stranger) = (certify("authority", None), certify("stranger", None));
    let server = certify("server", Some(&authority));
    let (authority, _) = write(folder.path(), "authority", &authority);
    let (stranger, _) = write(folder.path(), "stranger", &stranger);
    let (server, server_key) = write(folder.path(), "server", &server);
    let more = [("cert-file", &server), ("key-file", &server_key)];
    let more = more.iter().map(|(flag, file)| format!("--{flag}={}", file.display())).collect();
    let cluster = Cluster::begin(1, "https", more);
    let named = EtcdOptions {
        tls: TlsFiles { authority: Some(authority.clone()), certificate: None },
        time_limit: Duration::from_secs(120),
        ..EtcdOptions::new(cluster.endpoints())
    };
    Etcd::open(named).await.expect("it is named");
    for (named, expected) in [(None, "let in"), (Some(&stranger), "certificate verify failed")] {
        let again = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tls::asks_the_member_that_it_is_told_of", "--nocapture"])
            .env("CATALOGUE_MEMBER", cluster.endpoint(0))
            .env("CATALOGUE_AUTHORITY", named.unwrap_or(&PathBuf::new()))
            .env("SSL_CERT_FILE", &authority)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
        assert!(printed.contains(expected), "{printed}");
    }
}

/// The second process of the test above; by itself it asks nobody.
#[tokio::test(flavor = "multi_thread")]
async fn asks_the_member_that_it_is_told_of() {
    let Ok(member) = std::env::var("CATALOGUE_MEMBER") else { return };
    let authority = std::env::var_os("CATALOGUE_AUTHORITY").map(PathBuf::from).filter(|path| path.is_file());
    let tls = TlsFiles { authority, certificate: None };
    let options = EtcdOptions { tls, time_limit: Duration::from_secs(5), ..EtcdOptions::new([member]) };
    match Etcd::open(options).await {
        Ok(_) => println!("let in"),
        Err(told) => println!("{told}"),
    }
}

#[tokio::test]
async fn a_key_that_others_can_read_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = write(folder.path(), "client", &certify("client", None));
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let tls = TlsFiles { authority: None, certificate: Some((certificate, key)) };
    let time_limit = Duration::from_secs(1);
    let Err(told) = Etcd::open(EtcdOptions { tls, time_limit, ..EtcdOptions::new(["https://127.0.0.1:1"]) }).await
    else {
        panic!("it was let in")
    };
    assert!(matches!(&told, Error::Options { what } if what.contains("chmod 600")), "{told}");
}
