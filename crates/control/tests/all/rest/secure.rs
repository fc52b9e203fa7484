//! TLS, and where plain text is refused.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use control::rest::{Server, ServerError, ServerOptions};
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::ssl::{SslConnector, SslMethod};
use openssl::x509::extension::SubjectAlternativeName;
use openssl::x509::{X509, X509NameBuilder};
use tls::CertificateFiles;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_openssl::SslStream;

use super::client::say;
use crate::provision::world::World;

/// A certificate of its own authority, with its key.
fn certify(folder: &Path) -> CertificateFiles {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "localhost").unwrap();
    let name = name.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    let names = SubjectAlternativeName::new().dns("localhost").build(&builder.x509v3_context(None, None)).unwrap();
    builder.append_extension(names).unwrap();
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    let (chain, file) = (folder.join("chain.pem"), folder.join("key.pem"));
    std::fs::write(&chain, builder.build().to_pem().unwrap()).unwrap();
    std::fs::write(&file, key.private_key_to_pem_pkcs8().unwrap()).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    CertificateFiles { chain, key: file, authorities: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_served_over_tls_and_plain_text_gets_no_answer() {
    let (world, folder) = (World::new(&[]).await, tempfile::tempdir().unwrap());
    let files = certify(folder.path());
    let options = ServerOptions { tls: Some(files.clone()), ..ServerOptions::default() };
    let server = Server::new(&world.provisioner, &options).expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move { server.serve(listener).await });
    let mut connector = SslConnector::builder(SslMethod::tls_client()).unwrap();
    connector.set_ca_file(&files.chain).unwrap();
    let ssl = connector.build().configure().unwrap().into_ssl("localhost").unwrap();
    let mut stream = SslStream::new(ssl, TcpStream::connect(address).await.unwrap()).unwrap();
    Pin::new(&mut stream).connect().await.expect("the certificate is the one");
    assert_eq!(stream.ssl().version_str(), "TLSv1.3");
    assert_eq!(say(stream, "GET", "/healthz", &[], "").await.text, "ok\n");
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    let _cut = plain.read_to_end(&mut heard).await;
    assert!(!heard.starts_with(b"HTTP"), "{heard:?}");
    served.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_others_can_read_is_refused() {
    let (world, folder) = (World::new(&[]).await, tempfile::tempdir().unwrap());
    let files = certify(folder.path());
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let options = ServerOptions { tls: Some(files), ..ServerOptions::default() };
    let refused = Server::new(&world.provisioner, &options).err().expect("refused");
    assert!(matches!(&refused, ServerError::Tls(error) if error.to_string().contains("chmod 600")), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_is_for_this_machine_unless_it_is_meant() {
    let world = World::new(&[]).await;
    let server = Server::new(&world.provisioner, &ServerOptions::default()).expect("a server");
    let serve = server.serve(TcpListener::bind("0.0.0.0:0").await.unwrap());
    let refused = tokio::time::timeout(Duration::from_secs(60), serve).await.expect("it is not served");
    assert!(matches!(refused, ServerError::PlainText(_)), "{refused}");
    let options = ServerOptions { plain_text_anywhere: true, ..ServerOptions::default() };
    let server = Server::new(&world.provisioner, &options).expect("a server");
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(async move { server.serve(listener).await });
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    assert_eq!(say(stream, "GET", "/healthz", &[], "").await.status, 200);
    served.abort();
}
