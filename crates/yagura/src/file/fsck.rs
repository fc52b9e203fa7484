//! `yagura file fsck`.

use std::rc::Rc;

use ::file::{Damage, Fsck, Left, Report, Tally};
use engine::job::Progress;
use serde::Serialize;

use super::fault::failure;
use super::session::{Reach, Session};
use crate::cli::FileFsckArgs;
use crate::exit::Failure;
use crate::output::{self, many};

#[derive(Serialize)]
struct Checked {
    name: String,
    /// Nothing is damaged that was not mended.
    sound: bool,
    /// And nothing is left over.
    clean: bool,
    inodes: u64,
    names: u64,
    chunks: u64,
    clients: u64,
    damage: Vec<Damaged>,
    damage_untold: u64,
    left: Vec<LeftOver>,
    /// Quotas that were in use, and of which it is not known whether they count what is there.
    quotas_uncounted: u64,
}

#[derive(Serialize)]
struct Damaged {
    what: String,
    mended: bool,
}

#[derive(Serialize)]
struct LeftOver {
    what: &'static str,
    mended: u64,
    left: u64,
    waiting: u64,
}

/// Looks at a file system, and mends it if that is asked for.
pub fn run(args: &FileFsckArgs) -> Result<(), Failure> {
    let interrupted = "interrupted; what was mended is, and the next one begins anew";
    Session::run(&args.address, interrupted, async |session| fsck(args, session).await)
}

async fn fsck(args: &FileFsckArgs, session: &Session) -> Result<(), Failure> {
    // It has nothing but its record.
    let files = session.open(&args.name, Reach::Nobody).await?;
    let bar = Rc::new(output::progress_share("look", args.common.json));
    let shown = Rc::clone(&bar);
    let show = move |progress: &Progress| {
        shown.say(progress.what);
        shown.show(progress.done);
    };
    let checked = Fsck::new(&files, args.repair, Some(Rc::new(show))).run(args.wait).await;
    bar.finish_and_clear();
    let report = checked.map_err(failure)?;
    let checked = checked_of(&args.name, &report);
    output::report(args.common.json, &checked, |checked| describe(checked, args))?;
    match checked.sound {
        true => Ok(()),
        false => Err(Failure::check(format!(
            "file system {} is damaged{}",
            args.name,
            if args.repair { ", and not all of it could be mended" } else { "; `--repair` mends what can be" }
        ))),
    }
}

fn checked_of(name: &str, report: &Report) -> Checked {
    let damaged = |Damage { what, is_mended }: &Damage| Damaged { what: what.clone(), mended: *is_mended };
    let left = |(kind, tally): (&Left, &Tally)| {
        let Tally { mended, left, waiting } = *tally;
        LeftOver { what: kind.words(), mended, left, waiting }
    };
    Checked {
        name: name.to_owned(),
        sound: !report.is_damaged(),
        clean: !report.is_damaged() && report.left() == 0,
        inodes: report.inodes,
        names: report.names,
        chunks: report.chunks,
        clients: report.clients,
        damage: report.damage.iter().map(damaged).collect(),
        damage_untold: report.damage_untold,
        left: report.left.iter().map(left).collect(),
        quotas_uncounted: report.uncounted,
    }
}

fn describe(checked: &Checked, args: &FileFsckArgs) -> String {
    let mut text = format!(
        "file system {}: {}, {}, {}, {} besides this one\n",
        checked.name,
        many(checked.inodes, "inode"),
        many(checked.names, "name"),
        many(checked.chunks, "chunk"),
        many(checked.clients, "client"),
    );
    for Damaged { what, mended } in &checked.damage {
        text += &format!("  damaged{}: {what}\n", if *mended { ", mended" } else { "" });
    }
    if checked.damage_untold > 0 {
        text += &format!("  damaged: {} more\n", checked.damage_untold);
    }
    for LeftOver { what, mended, left, .. } in &checked.left {
        let told = match (mended, left) {
            (0, left) => format!("{left} left over"),
            (mended, 0) => format!("{mended} mended"),
            (mended, left) => format!("{mended} mended, {left} left over"),
        };
        text += &format!("  {what}: {told}\n");
    }
    if checked.quotas_uncounted > 0 {
        let quotas = many(checked.quotas_uncounted, "quota");
        text += &format!("  {quotas} in use: whether as much is there as is counted was not looked at\n");
    }
    let left: u64 = checked.left.iter().map(|left| left.left).sum();
    let waiting: u64 = checked.left.iter().map(|left| left.waiting).sum();
    text += &match (left, waiting) {
        (0, _) if checked.clean => "  nothing is damaged, and nothing is left over\n".to_owned(),
        (0, _) => String::new(),
        (_, 0) if args.repair => "  what is left over was in use, or names can't all be read: try again\n".to_owned(),
        (_, 0) => "  what is left over takes room and does no harm; `--repair` removes it\n".to_owned(),
        (_, waiting) => {
            let flags =
                if args.repair { "`--repair --wait` does" } else { "`--repair --wait` does, and removes it then" };
            format!("  {waiting} of these may be somebody's, as long as nobody has waited for an hour: {flags}\n")
        }
    };
    text
}
