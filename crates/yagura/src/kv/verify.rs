//! `yagura kv verify`: stored bytes against a directory.

use super::copy::{self, describe_comparison};
use super::timed::timed;
use crate::cli::KvVerifyArgs;
use crate::client;
use crate::exit::Failure;
use crate::output;
use crate::tree::Tree;

/// Runs the verb.
pub async fn verify(args: &KvVerifyArgs) -> Result<(), Failure> {
    let tree = Tree::list(&args.against, &args.prefix)?;
    let store = timed(client::open(&args.address).await?);
    let bar = output::progress("compare", tree.bytes(), args.common.json);
    let compared = copy::compare(&store, &tree, usize::from(args.depth), |bytes| bar.inc(bytes)).await;
    bar.finish_and_clear();
    let compared = compared?;
    output::report(args.common.json, &compared, describe_comparison)?;
    match compared.different {
        0 => Ok(()),
        different => Err(Failure::check(format!("{} not stored as they are", output::many(different, "file")))),
    }
}
