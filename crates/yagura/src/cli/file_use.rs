//! Flags of those verbs of `yagura file` that use a file system without mounting it.

use std::ffi::OsString;
use std::str::FromStr;

use clap::{Args, Subcommand};

use super::{Common, FileQuotaVerb, PoolAddress};
use crate::size::Size;

/// `yagura file …` on `NAME:PATH`, a path in file system NAME. What has no `:` before its first `/` is a path of this machine
/// (`./a:b` is one).
#[derive(Subcommand, Debug)]
pub enum FileUseVerb {
    /// List what is in directories of a file system.
    Ls(FileLsArgs),
    /// Write files to standard output.
    Cat(FileCatArgs),
    /// Copy files and trees into, out of, and within file systems.
    Cp(FileCpArgs),
    /// Remove names.
    Rm(FileRmArgs),
    /// Make directories.
    Mkdir(FileMkdirArgs),
    /// Give names other names; what has them is replaced, at once.
    Mv(FileMvArgs),
    /// Show all that is known of files.
    Stat(FileStatArgs),
    /// Draw which members hold what of a file: its data, its parity, and what is missing.
    Layout(FileLayoutArgs),
    /// Show how much room there is, by members, and what is used of quotas.
    Df(FileDfArgs),
    /// Limit what directories may hold, bytes and files.
    #[command(subcommand)]
    Quota(FileQuotaVerb),
}

/// `yagura file ls`
#[derive(Args, Debug)]
pub struct FileLsArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// What to list: `NAME:PATH`; `NAME:` is the root. With --json, one document a line.
    #[arg(value_name = "NAME:PATH", required = true)]
    pub paths: Vec<OsString>,
    /// Show kind, permissions, owner, group, size and time, too.
    #[arg(short, long)]
    pub long: bool,
    /// Go into directories.
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// `yagura file cat`
#[derive(Args, Debug)]
pub struct FileCatArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// Files.
    #[arg(value_name = "NAME:PATH", required = true)]
    pub paths: Vec<OsString>,
    /// Only the bytes from FROM to before TO of each; either may be left out. Both take units, such as 1MiB:2MiB.
    #[arg(long, value_name = "FROM:TO")]
    pub range: Option<ByteRange>,
}

/// Bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// The first.
    pub from: u64,
    /// Behind the last.
    pub to: u64,
}

impl FromStr for ByteRange {
    type Err = String;

    fn from_str(text: &str) -> Result<ByteRange, String> {
        let (from, to) = text.split_once(':').ok_or_else(|| format!("`{text}` is no range: write FROM:TO"))?;
        let end = |text: &str, absent| if text.is_empty() { Ok(absent) } else { text.parse().map(|Size(bytes)| bytes) };
        let range = ByteRange { from: end(from, 0)?, to: end(to, u64::MAX)? };
        if range.from > range.to {
            return Err(format!("`{text}` ends before it begins"));
        }
        Ok(range)
    }
}

/// `yagura file cp`
#[derive(Args, Debug)]
pub struct FileCpArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// What to copy: `NAME:PATH`, a path of this machine, or `-` for standard input.
    #[arg(value_name = "SOURCE", required = true)]
    pub sources: Vec<OsString>,
    /// Where to: a directory that is there, or a new name, or `-` for standard output. At one end at least is a file system.
    #[arg(value_name = "TARGET")]
    pub target: OsString,
    /// Copy directories with all that is in them; symbolic links stay links.
    #[arg(short, long)]
    pub recursive: bool,
    /// Read back what was written, and compare it, before it gets its name.
    #[arg(long)]
    pub verify: bool,
    /// Files that are copied at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: u16,
}

/// `yagura file rm`
#[derive(Args, Debug)]
pub struct FileRmArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// What to remove.
    #[arg(value_name = "NAME:PATH", required = true)]
    pub paths: Vec<OsString>,
    /// Remove directories with all that is in them.
    #[arg(short, long)]
    pub recursive: bool,
}

/// `yagura file mkdir`
#[derive(Args, Debug)]
pub struct FileMkdirArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// Directories.
    #[arg(value_name = "NAME:PATH", required = true)]
    pub paths: Vec<OsString>,
    /// Make those above them, too; what is there already is no fault.
    #[arg(short, long)]
    pub parents: bool,
}

/// `yagura file mv`
#[derive(Args, Debug)]
pub struct FileMvArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// What to move.
    #[arg(value_name = "NAME:PATH", required = true)]
    pub sources: Vec<OsString>,
    /// Where to, in the same file system: a directory that is there, or a new name.
    #[arg(value_name = "TARGET")]
    pub target: OsString,
    /// Refuse to replace what has the name.
    #[arg(short, long)]
    pub no_replace: bool,
}

/// `yagura file stat`
#[derive(Args, Debug)]
pub struct FileStatArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// What to show. A symbolic link is shown itself, unless a `/` is behind it. With --json, one document a line.
    #[arg(value_name = "NAME:PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// `yagura file layout`
#[derive(Args, Debug)]
pub struct FileLayoutArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// A file.
    #[arg(value_name = "NAME:PATH")]
    pub path: OsString,
    /// Only the bytes from FROM to before TO.
    #[arg(long, value_name = "FROM:TO")]
    pub range: Option<ByteRange>,
}

/// `yagura file df`
#[derive(Args, Debug)]
pub struct FileDfArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// A file system.
    #[arg(value_name = "NAME")]
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let range = |from, to| Ok(ByteRange { from, to });
        assert_eq!("1K:2K".parse(), range(1024, 2048));
        assert_eq!("7:".parse(), range(7, u64::MAX));
        assert_eq!(":7".parse(), range(0, 7));
        assert_eq!(":".parse(), range(0, u64::MAX));
        for bad in ["", "7", "2:1", "a:b", "1:2:3"] {
            assert!(bad.parse::<ByteRange>().is_err(), "{bad}");
        }
    }
}
