//! Those verbs of `yagura file` that use a file system without mounting it: each in a session of its own, which a signal ends.

use super::session::Session;
use super::{cat, copy, layout, list, names, quota, stat};
use crate::cli::{FileQuotaVerb, FileUseVerb, PoolAddress};
use crate::exit::Failure;

fn address(verb: &FileUseVerb) -> &PoolAddress {
    match verb {
        FileUseVerb::Ls(args) => &args.address,
        FileUseVerb::Cat(args) => &args.address,
        FileUseVerb::Cp(args) => &args.address,
        FileUseVerb::Rm(args) => &args.address,
        FileUseVerb::Mkdir(args) => &args.address,
        FileUseVerb::Mv(args) => &args.address,
        FileUseVerb::Stat(args) => &args.address,
        FileUseVerb::Layout(args) => &args.address,
        FileUseVerb::Df(args) => &args.address,
        FileUseVerb::Quota(FileQuotaVerb::Set(args)) => &args.address,
        FileUseVerb::Quota(FileQuotaVerb::Show(args) | FileQuotaVerb::Clear(args)) => &args.address,
    }
}

/// Runs a verb.
pub fn run(verb: &FileUseVerb) -> Result<(), Failure> {
    Session::run(address(verb), "interrupted; what has got its name is whole", async |session| match verb {
        FileUseVerb::Ls(args) => list::ls(session, args).await,
        FileUseVerb::Cat(args) => cat::cat(session, args).await,
        FileUseVerb::Cp(args) => copy::cp(session, args).await,
        FileUseVerb::Rm(args) => names::rm(session, args).await,
        FileUseVerb::Mkdir(args) => names::mkdir(session, args).await,
        FileUseVerb::Mv(args) => names::mv(session, args).await,
        FileUseVerb::Stat(args) => stat::stat(session, args).await,
        FileUseVerb::Layout(args) => layout::layout(session, args).await,
        FileUseVerb::Df(args) => stat::df(session, args).await,
        FileUseVerb::Quota(verb) => quota::run(session, verb).await,
    })
}
