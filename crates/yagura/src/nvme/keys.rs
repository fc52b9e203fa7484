//! The keys of a host: made, and read from the files that flags name.

use std::path::Path;

use client::{SecurityOptions, tls_key};
use fabric::auth::{DhchapKey, Hash};
use fabric::host::Options;
use fabric::psk::{ConfiguredPsk, Derivation, IdentityVersion, PskHash};
use nvme::Nqn;
use serde::Serialize;

use crate::cli::{CheckTlsKeyArgs, GenDhchapKeyArgs, GenTlsKeyArgs, NvmeHost};
use crate::exit::Failure;
use crate::output;

/// Name and keys of the host, as the flags say.
pub fn security(host: &NvmeHost) -> SecurityOptions {
    SecurityOptions {
        host_nqn: host.host_nqn.clone(),
        dhchap_key_file: host.dhchap_key_file.clone(),
        dhchap_ctrl_key_file: host.dhchap_ctrl_key_file.clone(),
        concatenation: host.concat,
        tls_key_file: host.tls_key_file.clone(),
        tls_identity_zero: host.tls_identity == 0,
        tls_legacy: host.tls_legacy,
    }
}

/// Puts the host's name and keys into the options.
pub fn apply(host: &NvmeHost, options: &mut Options) -> Result<(), Failure> {
    Ok(security(host).apply(options)?)
}

/// What was made; never the key.
#[derive(Serialize)]
struct Made {
    file: String,
    hash: &'static str,
    nqn: Option<String>,
}

/// `yagura nvme gen-dhchap-key`
pub fn generate_dhchap(args: &GenDhchapKeyArgs) -> Result<(), Failure> {
    let hash = match args.hash.as_str() {
        "none" => None,
        name => {
            let known = Hash::ALL.into_iter().find(|hash| hash.label() == name);
            let wrong = || Failure::usage(format!("--hash `{name}`: must be sha256, sha384, sha512 or none"));
            Some(known.ok_or_else(wrong)?)
        }
    };
    let nqn = args.nqn.as_deref().map(Nqn::foreign).transpose();
    let nqn = nqn.map_err(|error| Failure::usage(format!("--nqn: {error}")))?;
    let key = DhchapKey::generate(hash, nqn.as_ref()).map_err(Failure::refused)?;
    key.text().write_new(&args.output).map_err(Failure::refused)?;
    let made = Made {
        file: args.output.display().to_string(),
        hash: key.transform().map_or("none", Hash::label),
        nqn: nqn.as_ref().map(ToString::to_string),
    };
    output::report(args.common.json, &made, |made| match &made.nqn {
        Some(nqn) => format!("{}: a key for {nqn} alone\n", made.file),
        None => format!("{}: a key, transformed by: {}\n", made.file, made.hash),
    })
}

fn identity_version(version: u8) -> IdentityVersion {
    if version == 0 { IdentityVersion::Zero } else { IdentityVersion::One }
}

/// A key for TLS in words; never the key.
#[derive(Serialize)]
struct TlsKeyReport {
    file: String,
    suite: &'static str,
    transformed: bool,
    identity: Option<String>,
}

impl TlsKeyReport {
    fn new(file: &Path, key: &ConfiguredPsk) -> TlsKeyReport {
        let (suite, transformed) = (key.hash().suite().name(), key.transform().is_some());
        TlsKeyReport { file: file.display().to_string(), suite, transformed, identity: None }
    }

    fn describe(&self) -> String {
        let how = if self.transformed { "transformed for each host" } else { "used as it is" };
        let mut text = format!("{}: a key for {}, {how}\n", self.file, self.suite);
        if let Some(identity) = &self.identity {
            text += &format!("offered as: {identity}\n");
        }
        text
    }
}

/// `yagura nvme gen-tls-key`
pub fn generate_tls(args: &GenTlsKeyArgs) -> Result<(), Failure> {
    let hash = match args.hash.as_str() {
        "sha256" => PskHash::Sha256,
        "sha384" => PskHash::Sha384,
        name => return Err(Failure::usage(format!("--hash `{name}`: must be sha256 or sha384"))),
    };
    let key = ConfiguredPsk::random((!args.no_transform).then_some(hash), hash).map_err(Failure::refused)?;
    key.to_interchange().write_new(&args.output).map_err(Failure::refused)?;
    output::report(args.common.json, &TlsKeyReport::new(&args.output, &key), TlsKeyReport::describe)
}

/// `yagura nvme check-tls-key`
pub fn check_tls(args: &CheckTlsKeyArgs) -> Result<(), Failure> {
    let key = tls_key(&args.file)?;
    let mut report = TlsKeyReport::new(&args.file, &key);
    if let (Some(host), Some(subsystem)) = (&args.host_nqn, &args.nqn) {
        let host = host.parse().map_err(|error| Failure::usage(format!("--host-nqn: {error}")))?;
        let subsystem = Nqn::foreign(subsystem).map_err(|error| Failure::usage(format!("--nqn: {error}")))?;
        let derivation = if args.tls_legacy { Derivation::Legacy } else { Derivation::Standard };
        let retained = key.retain(&host, derivation).map_err(Failure::refused)?;
        let psk = retained.tls_psk(identity_version(args.tls_identity), &subsystem).map_err(Failure::usage)?;
        report.identity = Some(psk.identity().to_string());
    }
    output::report(args.common.json, &report, TlsKeyReport::describe)
}
