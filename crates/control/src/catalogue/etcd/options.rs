//! How an etcd is reached.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use openssl::ssl::{SslConnector, SslFiletype, SslMethod, SslVersion};
use openssl::x509::store::{X509Lookup, X509StoreBuilder};
use tls::Secret;

use crate::catalogue::error::{Cause, Error};
use crate::catalogue::limits::NAMESPACE_BYTES_MAX;

/// Members that may be named. Chosen: etcd's own advice is seven at most; names of old ones may stand beside them.
const ENDPOINTS_MAX: usize = 32;

/// A user of etcd. The password is wiped from memory when this is dropped, and so is each message that carries the password; what
/// HTTP/2 keeps of a message until it is sent is not.
#[derive(Clone, Debug)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The user's password.
    pub password: Secret,
}

/// Files for TLS, in PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Whom to trust, and nobody else; without it, whom the machine trusts.
    pub authority: Option<PathBuf>,
    /// The certificate that is shown to etcd, with those that vouch for it, and its key, which nobody else may be able to read.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// How an etcd is reached.
#[derive(Clone)]
pub struct EtcdOptions {
    /// Members: `http://10.0.0.1:2379`, or `https://…` for TLS. Name all of them: only those that are named are asked.
    pub endpoints: Vec<String>,
    /// Files for TLS.
    pub tls: TlsFiles,
    /// Who asks, where etcd has users.
    pub user: Option<User>,
    /// Whether the password is sent over `http://` also to members elsewhere, where whoever is on the way can read it. To an address
    /// of loopback it always may be: who can read there can read this process. A name is none, `localhost` neither: it is what
    /// somebody says that it is.
    pub plain_password: bool,
    /// What all keys begin with in etcd, so that others can use the same one: `yagura/`, say.
    pub namespace: Vec<u8>,
    /// How long an operation may take, with all tries.
    pub time_limit: Duration,
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints.iter().map(|endpoint| shown(endpoint)).collect::<Vec<_>>())
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("plain_password", &self.plain_password)
            .field("namespace", &self.namespace.escape_ascii().to_string())
            .field("time_limit", &self.time_limit)
            .finish()
    }
}

/// An endpoint without the user and the password that may stand in it.
fn shown(endpoint: &str) -> String {
    endpoint.rsplit_once('@').map_or_else(|| endpoint.to_owned(), |(_, rest)| format!("…@{rest}"))
}

impl EtcdOptions {
    /// These members without TLS or user, keys below `yagura/`, operations within 20 seconds.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> EtcdOptions {
        EtcdOptions {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: TlsFiles::default(),
            user: None,
            plain_password: false,
            namespace: b"yagura/".to_vec(),
            time_limit: Duration::from_secs(20),
        }
    }

    /// The members' addresses, if all is well with them and with the namespace.
    pub(super) fn members(&self) -> Result<Vec<Uri>, Error> {
        let wrong = |what: String| Error::Options { what };
        if self.endpoints.is_empty() || self.endpoints.len() > ENDPOINTS_MAX {
            return Err(wrong(format!("{} members are named: name 1 to {ENDPOINTS_MAX}", self.endpoints.len())));
        }
        if self.namespace.len() > NAMESPACE_BYTES_MAX {
            let bytes = self.namespace.len();
            return Err(wrong(format!("the namespace has {bytes} bytes: choose one of up to {NAMESPACE_BYTES_MAX}")));
        }
        let member = |endpoint: &String| {
            if endpoint.contains('@') {
                let shown = shown(endpoint);
                return Err(wrong(format!(
                    "the member {shown} is named with a user or a password: give these as `user`"
                )));
            }
            let uri: Uri = endpoint.parse().map_err(|fault| wrong(format!("the member {endpoint}: {fault}")))?;
            let is_whole = matches!(uri.scheme_str(), Some("http" | "https")) && uri.port_u16().is_some();
            let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
            if is_whole && is_bare {
                return self.may_be_told(&uri).then_some(uri).ok_or_else(|| {
                    wrong(format!(
                        "the password of {} would go to the member {endpoint} for all to read: name it https://HOST:PORT, or allow it \
                         with `plain_password`",
                        self.user.as_ref().map_or("", |user| &user.name)
                    ))
                });
            }
            Err(wrong(format!("the member {endpoint} is not named like http://HOST:PORT or https://HOST:PORT")))
        };
        self.endpoints.iter().map(member).collect()
    }

    /// Whether the password, if there is any, may be sent to the member.
    fn may_be_told(&self, member: &Uri) -> bool {
        let host = member.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        self.user.is_none() || self.plain_password || is_loopback || member.scheme_str() == Some("https")
    }

    /// What makes TLS of a connection.
    pub(super) fn tls(&self) -> Result<SslConnector, Error> {
        let build = || -> Result<SslConnector, Cause> {
            let mut builder = SslConnector::builder(SslMethod::tls_client())?;
            builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
            // gRPC is spoken over HTTP/2 alone, and etcd insists that it is agreed on.
            builder.set_alpn_protos(b"\x02h2")?;
            if let Some(authority) = &self.tls.authority {
                // In the place of the store that a connector begins with, which trusts whom the machine trusts.
                let mut store = X509StoreBuilder::new()?;
                store.add_lookup(X509Lookup::file())?.load_cert_file(authority, SslFiletype::PEM)?;
                builder.set_cert_store(store.build());
            }
            if let Some((certificate, key)) = &self.tls.certificate {
                builder.set_certificate_chain_file(certificate)?;
                let key = tls::private_key(key)?;
                builder.set_private_key(&key)?;
                builder.check_private_key()?;
            }
            Ok(builder.build())
        };
        let wrong = |fault: Cause| Error::Options {
            what: format!(
                "the files for TLS ({:?}): {fault}; name readable files in PEM, with the key to the certificate",
                self.tls
            ),
        };
        build().map_err(wrong)
    }
}
