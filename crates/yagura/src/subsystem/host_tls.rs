//! What `--host` says of a host's TLS.

use std::path::PathBuf;

use client::tls_key;
use fabric::subsystem::HostConfig;
use nvme::Nqn;

use crate::spec::once;

/// `tls-key-file=FILE`, `tls-legacy=yes`, `tls=required`, `concat=yes`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HostTls {
    key_file: Option<PathBuf>,
    legacy: Option<()>,
    required: Option<()>,
    concatenation: Option<()>,
}

impl HostTls {
    /// Takes one of the four.
    pub fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        match (key, value) {
            ("tls-key-file", file) => once(&mut self.key_file, "tls-key-file", file.into()),
            ("concat", "yes") => once(&mut self.concatenation, "concat", ()),
            ("tls-legacy", "yes") => once(&mut self.legacy, "tls-legacy", ()),
            ("tls", "required") => once(&mut self.required, "tls", ()),
            ("tls", value) => {
                Err(format!("tls `{value}`: may be `required` for a host; ports say whether they do TLS"))
            }
            (key, value) => Err(format!("{key} `{value}`: may be `yes`")),
        }
    }

    /// All of it together, for a host that authenticates itself, or does not.
    pub fn checked(self, authenticates: bool) -> Result<HostTls, String> {
        if self.concatenation.is_some() && !authenticates {
            return Err("concat goes with a dhchap-key-file: the authentication makes the key for TLS".into());
        }
        match (&self.key_file, self.legacy) {
            (None, Some(())) => {
                Err("tls-legacy goes with a tls-key-file: it says how keys are made of that one".into())
            }
            _ => Ok(self),
        }
    }

    /// Reads the key.
    pub fn apply(&self, host: &Nqn, config: &mut HostConfig) -> Result<(), String> {
        config.tls_required = self.required.is_some();
        config.concatenation = self.concatenation.is_some();
        let Some(file) = &self.key_file else { return Ok(()) };
        let key = tls_key(file).map_err(|error| error.to_string())?;
        config.tls_keys = key.retain_all(host, self.legacy.is_some()).map_err(|error| error.to_string())?;
        Ok(())
    }
}
