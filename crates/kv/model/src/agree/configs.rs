//! The configurations of the agreement model.

use super::Change::{Begin, Direct, End, GiveUp, Note, Open, Renew, Seize, TakeBack, TakeIn};
use super::Config;

/// The sound groups by name, in the order of their size.
pub const SOUND: [&str; 3] = ["agree", "agree-large", "agree-open"];

/// Voters: members 0 to 2, members 1 to 3, member 3 alone.
const OLD: u8 = 0b0111;
const NEW: u8 = 0b1110;
const LAST: u8 = 0b1000;

/// Sound configurations; empty for an unknown name.
pub fn sound(group: &str) -> Vec<Config> {
    let new = Config::new;
    match group {
        "agree" => vec![
            new("agree: note|note", OLD, &[&[Note], &[Note]]),
            new("agree: note|open", OLD, &[&[Note], &[Open]]),
            new("agree: one voter becomes another|note", 1, &[&[Begin(2), End], &[Note]]),
            new("agree: ended|taken back", 1, &[&[Begin(2), End], &[TakeBack]]),
            new("agree: two voters, one replaced|note", 0b011, &[&[Begin(0b110), End], &[Note]]),
            new("agree: one voter begins anew|note", OLD, &[&[Renew(0)], &[Note]]).with(|c| c.losses = 1),
            new("agree: marked, a voter rolled back", OLD, &[&[Note], &[Note]])
                .with(|c| (c.marked, c.rollbacks, c.ballots_max) = (true, 1, 1)),
            new("agree: seized|note", 1, &[&[Seize(1)], &[Note]]).with(|c| c.learners = 0b10),
            new("agree: seized|seized", 1, &[&[Seize(1)], &[Seize(1)]]).with(|c| c.learners = 0b110),
            new("agree: seized,note|note", 1, &[&[Seize(1), Note], &[Note]]).with(|c| c.learners = 0b10),
            new("agree: seized,taken in|note", 1, &[&[Seize(1), TakeIn(1)], &[Note]]).with(|c| c.learners = 0b10),
            new("agree: two of three seized|note,note", OLD, &[&[Seize(0b11)], &[Note, Note]]),
            new("agree: seized|note|open", 1, &[&[Seize(1)], &[Note], &[Open]]).with(|c| c.learners = 0b10),
        ],
        "agree-large" => vec![
            new("agree: seized|seized|note", 1, &[&[Seize(1)], &[Seize(1)], &[Note]]).with(|c| c.learners = 0b110),
            new("agree: note,note|open", OLD, &[&[Note, Note], &[Open]]),
            new("agree: ended|taken back|open", 1, &[&[Begin(2), End], &[TakeBack], &[Open]]),
            new("agree: the voters become another one,note", OLD, &[&[Begin(LAST), End, Note]])
                .with(|c| c.ballots_max = 4),
            new("agree: note|note, a map is damaged", OLD, &[&[Note], &[Note]]).with(|c| c.torn = 1),
            new("agree: a new voter is given up|ended", 0b011, &[&[Begin(0b110), GiveUp(2)], &[End]]),
            new("agree: a voter is replaced|taken back", 0b011, &[&[Begin(0b110), End], &[TakeBack, Note]]),
            new("agree: one voter begins anew,ends|taken back", OLD, &[&[Renew(0), End], &[TakeBack]])
                .with(|c| c.losses = 1),
        ],
        "agree-open" => vec![
            new("agree: marked, a voter rolled back, two ballots", OLD, &[&[Note], &[Note]])
                .with(|c| (c.marked, c.rollbacks) = (true, 1)),
            new("agree: two begin one voter anew", OLD, &[&[Renew(0), End], &[Renew(0), End]]).with(|c| c.losses = 2),
            new("agree: note|note|open", OLD, &[&[Note], &[Note], &[Open]]),
            new("agree: note,note|note", OLD, &[&[Note, Note], &[Note]]),
            new("agree: one of three voters is replaced|note", OLD, &[&[Begin(NEW), End], &[Note]]),
        ],
        _ => Vec::new(),
    }
}

/// Each rule broken: each must violate.
pub fn broken() -> Vec<Config> {
    let new = Config::new;
    let once = |c: &mut Config| c.ballots_max = 1;
    vec![
        new("agreement: builds on the map it knows", OLD, &[&[Note], &[Note]]).under(|r| r.builds_on_known = true),
        new("agreement: builds on a map that may not be in force", OLD, &[&[Begin(LAST), End, Note]])
            .with(|c| c.ballots_max = 4)
            .under(|r| r.builds_on_unsettled = true),
        new("agreement: accepts although it has promised more", OLD, &[&[Note], &[Note]])
            .under(|r| r.promise_ignored = true),
        new("agreement: a quorum of the map known", 1, &[&[Begin(2), End, Note], &[Note]])
            .under(|r| r.quorum_of_known = true),
        new("agreement: other voters without a joint map", 1, &[&[Direct(2)], &[Note], &[Open]]),
        new("agreement: a voter that lost what it had votes on", OLD, &[&[Note], &[Note]])
            .with(|c| (c.losses, c.ballots_max) = (1, 1))
            .under(|r| r.votes_after_loss = true),
        new("agreement: a voter judged by the marks known", OLD, &[&[Note], &[Note]])
            .with(|c| (c.marked, c.rollbacks, c.ballots_max) = (true, 1, 1))
            .under(|r| r.marks_of_known = true),
        new("agreement: counts in whatever life", OLD, &[&[Renew(0)], &[Note]])
            .with(|c| (c.losses, c.ballots_max) = (1, 1))
            .under(|r| r.any_life = true),
        new("agreement: a promise without its map counts", OLD, &[&[Note], &[Note]])
            .with(|c| (c.torn, c.ballots_max) = (1, 1))
            .under(|r| r.torn_counts = true),
        new("agreement: a change is not recognised", OLD, &[&[Note], &[Note]]).under(|r| r.not_recognised = true),
        new("agreement: opened with the newest map seen", OLD, &[&[Note], &[Note], &[Open]])
            .with(once)
            .under(|r| r.opens_newest = true),
        new("agreement: handed to who has gone on without its voters", 1, &[&[Seize(1)], &[Note]])
            .with(|c| c.learners = 0b10)
            .under(|r| r.seized_handed_over = true),
        new("agreement: gone on without the voters, and judged by ballots", 1, &[&[Seize(1)], &[Note, Note]])
            .with(|c| c.learners = 0b10)
            .under(|r| r.seized_by_ballot = true),
        new("agreement: who has gone on is not asked what it carries", 1, &[&[Seize(1)], &[Seize(1)]])
            .with(|c| c.learners = 0b110)
            .under(|r| r.seized_met_by_voters = true),
        new("agreement: some have gone on without the voters", 1, &[&[Seize(1)], &[Seize(1)]])
            .with(|c| c.learners = 0b110)
            .under(|r| r.seized_by_some = true),
        new("agreement: a joint map by its new side", 1, &[&[Begin(2)], &[Note], &[Open]])
            .under(|r| r.joint_by_new = true),
    ]
}

/// More of the kind of [`broken`], in spaces too large for the gate.
pub fn broken_large() -> Vec<Config> {
    vec![
        Config::new("agreement: opened with equal maps of several ballots", OLD, &[&[Note], &[Note, Open]])
            .under(|r| r.opens_any_ballot = true),
    ]
}
