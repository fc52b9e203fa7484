//! The keys of a host: made, and read from the files that flags name.

use fabric::auth::{DhchapKey, Hash, HostKeys};
use fabric::host::Options;
use nvme::Nqn;
use serde::Serialize;

use crate::cli::{GenDhchapKeyArgs, NvmeHost};
use crate::exit::Failure;
use crate::output;

/// Puts the host's name and keys into the options.
pub fn apply(host: &NvmeHost, options: &mut Options) -> Result<(), Failure> {
    if let Some(nqn) = &host.host_nqn {
        options.host.nqn = nqn.parse().map_err(|error| Failure::usage(format!("--host-nqn: {error}")))?;
    }
    if let Some(file) = &host.dhchap_key_file {
        let keys = HostKeys::from_files(file, host.dhchap_ctrl_key_file.as_deref()).map_err(Failure::usage)?;
        options.security.dhchap = Some(keys);
    }
    Ok(())
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
    let nqn = args.nqn.as_deref().map(str::parse::<Nqn>).transpose();
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
