//! What is searched beyond the mirror itself: flushes and losses of power, hand-over, snapshots, and how the volume grows.

use crate::config::Broken::*;
use crate::config::Config;
use crate::notation::new;

/// Flushes, and losses of power of all that are in sync. How often a replica has lost power can be read there.
pub(crate) fn power() -> Vec<Config> {
    vec![
        new("N1 W,F,W|R power1", 1, "W,F,W|R").power_losses(1).loses_all(),
        new("N1 W,F,W|R,F power2", 1, "W,F,W|R,F").power_losses(2).loses_all(),
        new("N2+w W,F,W|R power1 v1 rec1 host 1 calm", 2, "W,F,W|R")
            .power_losses(1)
            .loses_all()
            .versions(1)
            .calm(0b010),
        new("N2+w one out, W,F alone, power1 v3", 2, "W,F").out(0b010).power_losses(1).loses_all().versions(3),
        new("N2+w W,F|R power1 v1 rec0 fail0 host 1 calm", 2, "W,F|R")
            .power_losses(1)
            .loses_all()
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010),
        new("N2+w W,F|R power1 v1 rec0, goes back with those reached", 2, "W,F|R")
            .power_losses(1)
            .loses_all()
            .forced()
            .versions(1)
            .reconnects(0)
            .calm(0b010),
        new("N2+w W|R power2 v1 rec0 fail0 host 1 calm", 2, "W|R")
            .power_losses(2)
            .loses_all()
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010)
            .uncleared(),
        new("N2+w one out, W,W,F alone, power1 v3 fail0", 2, "W,W,F")
            .out(0b010)
            .power_losses(1)
            .loses_all()
            .versions(3)
            .failures(0),
        new("N3 W,F|R power1 v1 rec0 host 1 calm", 3, "W,F|R")
            .power_losses(1)
            .loses_all()
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010)
            .uncleared(),
        new("N3 W,F|R power2 v1 rec0 fail0 host 1 calm", 3, "W,F|R")
            .power_losses(2)
            .loses_all()
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010)
            .uncleared(),
    ]
}

/// The same where nobody can know how often a replica has lost power.
pub(crate) fn uncounted() -> Vec<Config> {
    vec![
        new("N1 W,F,W|R power1", 1, "W,F,W|R").power_losses(1).uncounted(),
        new("N2+w W,F|R power1 v1 rec0 fail0 host 1 calm", 2, "W,F|R")
            .power_losses(1)
            .uncounted()
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010),
        new("N2+w W,F alone, power1 v2 fail0 rec1", 2, "W,F").power_losses(1).uncounted().versions(2).failures(0),
        new("N2+w one out, W,F alone, power1 v3 fail0 rec1", 2, "W,F")
            .out(0b010)
            .power_losses(1)
            .uncounted()
            .versions(3)
            .failures(0),
        new("N2+w W,F,W alone, power1 v3 fail1 rec1", 2, "W,F,W").power_losses(1).uncounted(),
        new("N3 W,F|R power1 v1 rec0 fail0 host 1 calm", 3, "W,F|R")
            .power_losses(1)
            .uncounted()
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010)
            .uncleared(),
    ]
}

/// A host releases the volume, at any time when it has nothing in flight, and others attach.
pub(crate) fn handover() -> Vec<Config> {
    let small = |config: Config| config.versions(1).reconnects(0).uncleared();
    vec![
        small(new("N3 R,R|W v1 rec0, host 1 calm", 3, "R,R|W")).hands_over(0b001).calm(0b010),
        small(new("N3 W,R|W v1 rec0 fail0", 3, "W,R|W")).hands_over(0b001).failures(0).calm(0b010),
        small(new("N2+w W,R|R,W v1 rec0", 2, "W,R|R,W")).hands_over(0b001),
        new("N2+w W,R|R v2 rec1 clears, host 1 calm", 2, "W,R|R").hands_over(0b001).versions(2).calm(0b010),
        small(new("N2+w R|R|W, hosts 0 and 1 release", 2, "R|R|W")).hands_over(0b011).calm(0b111).unprobed(),
        small(new("N2+w R|W|W, host 1 releases, host 0 does not", 2, "R|W|W")).hands_over(0b010).calm(0b111).unprobed(),
        new("N1 W,F,W|R power1 uncounted", 1, "W,F,W|R").power_losses(1).uncounted().hands_over(0b001),
        new("N2+w W,F|R power1 uncounted v1 rec0", 2, "W,F|R")
            .power_losses(1)
            .uncounted()
            .hands_over(0b001)
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010),
    ]
}

/// Rules of hand-over that are broken on purpose.
pub(crate) fn broken_handover() -> Vec<Config> {
    let small = |config: Config| config.versions(1).reconnects(0).failures(0).uncleared().unprobed();
    vec![
        small(new("H1 a host that was asked to hand over is believed to be done", 3, "R|W"))
            .hands_over(0b001)
            .calm(0b011)
            .superseded_go_on()
            .without(AskedIsDone),
        small(new("H2 a host says that it is done and goes on reading", 3, "R,R|W"))
            .hands_over(0b001)
            .calm(0b011)
            .superseded_go_on()
            .without(DoneAndReads),
        new("H4 without counts, a host says that it is done without a flush", 1, "W|R")
            .power_losses(1)
            .uncounted()
            .hands_over(0b001)
            .without(DoneUnflushed),
    ]
}

/// One of them that takes a minute.
pub(crate) fn broken_large() -> Config {
    new("H3 the word of a host that was superseded since counts", 2, "R|R|W")
        .hands_over(0b001)
        .versions(1)
        .reconnects(0)
        .failures(0)
        .calm(0b111)
        .uncleared()
        .unprobed()
        .uncompared()
        .without(OldWord)
}

/// Those that need hours, or do not end.
pub(crate) fn big() -> Vec<Config> {
    vec![
        new("N3 W,F|R power1 v2 rec1 fail1 host 1 calm", 3, "W,F|R")
            .power_losses(1)
            .loses_all()
            .versions(2)
            .calm(0b010)
            .uncleared(),
        new("N2+w W,F|R power1 uncounted v2 rec1 fail1 host 1 calm", 2, "W,F|R")
            .power_losses(1)
            .uncounted()
            .versions(2)
            .calm(0b010),
        new("N2+w S,W|R v2 rec0 fail1, two attempts, host 1 calm", 2, "S,W|R")
            .versions(2)
            .reconnects(0)
            .calm(0b010)
            .deletes()
            .uncleared(),
    ]
}

/// Rules of them that are broken on purpose.
pub(crate) fn broken() -> Vec<Config> {
    vec![
        new("V3 a flush is acknowledged by who was needed when it began", 2, "W,W,F")
            .out(0b010)
            .power_losses(1)
            .loses_all()
            .uncleared()
            .failures(0)
            .without(FlushByTheFirst),
        new("V4 who joins is in sync before it has flushed", 2, "W,F")
            .out(0b010)
            .power_losses(1)
            .loses_all()
            .uncleared()
            .failures(0)
            .without(JoinUnflushed),
        new("V5 a flush counts of a replica that has lost power since", 2, "W,F")
            .power_losses(1)
            .loses_all()
            .versions(1)
            .failures(0)
            .without(FlushTrusted),
        new("V6 an attach goes back as soon as all that it reaches have lost power", 2, "W")
            .power_losses(1)
            .loses_all()
            .versions(1)
            .without(RollBackEarly),
        new("V7 a host goes on with replicas that have all lost power", 2, "W,R")
            .power_losses(1)
            .loses_all()
            .reconnects(2)
            .versions(1)
            .failures(0)
            .without(GoOnAfterAll),
        new("V9 what was settled after an attach that goes back is served before it is flushed", 2, "W|R")
            .power_losses(1)
            .uncounted()
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010)
            .uncleared()
            .without(SettledUnflushed),
        new("V8 without counts, a host that connects again goes on as if nothing were lost", 2, "W,F")
            .power_losses(1)
            .uncounted()
            .versions(1)
            .failures(0)
            .without(ReconnectTrusted),
    ]
}

/// Snapshots, of one region and of two.
pub(crate) fn snapshot() -> Vec<Config> {
    let small = |config: Config| config.versions(2).failures(0).reconnects(0);
    let once = |config: Config| config.attempts(1).deletes().uncleared();
    vec![
        new("N1 W,S,W|R", 1, "W,S,W|R").deletes(),
        small(new("N2+w S+W0,W1 two regions, v2 rec0 fail0", 2, "S+W0,W1")).regions(2).attempts(1),
        small(once(new("N2+w S,W|R v2 rec0 fail0, host 1 calm", 2, "S,W|R"))).calm(0b010),
        small(once(new("N2+w W|S v2 rec0 fail0, host 0 calm", 2, "W|S"))).calm(0b001),
        small(new("N2+w S|S v2 rec0 fail0, hosts calm", 2, "S|S")).calm(0b011).deletes().uncleared(),
        small(new("N3 S+W v2 rec0 fail0", 3, "S+W")).uncleared(),
        once(new("N2+w one out, S+W v4 fail0 rec1", 2, "S+W")).out(0b010).versions(4).failures(0),
        once(new("N2+w replaced1 S+W v6 fail0 rec1", 2, "S+W")).replacements(1).versions(6).failures(0),
        new("N2+w S+W fail1 rec1 v3", 2, "S+W"),
        small(once(new("N2+w S+W|R v2 rec0 fail0, host 1 calm", 2, "S+W|R"))).calm(0b010),
        once(new("N2+w S,W|R v2 fail1 rec0, host 1 calm", 2, "S,W|R")).versions(2).reconnects(0).calm(0b010),
        small(once(new("N2+w S+W|R power1 v2 rec0 fail0, host 1 calm", 2, "S+W|R")))
            .power_losses(1)
            .loses_all()
            .calm(0b010),
        small(once(new("N3 S,W|R v2 rec0 fail0, host 1 calm", 3, "S,W|R"))).calm(0b010),
        new("N1 S,W,D|R", 1, "S,W,D|R").versions(4).deletes(),
        small(once(new("N2+w S,D|R v3 rec0 fail0, host 1 calm", 2, "S,D|R"))).versions(3).calm(0b010),
        small(once(new("N2+w S|D v2 rec0 fail0, hosts calm", 2, "S|D"))).calm(0b011),
        once(new("N2+w S,D v4 fail1 rec1", 2, "S,D")).versions(4),
        once(new("N2+w one out, S,D v5 fail0 rec1", 2, "S,D")).out(0b010).versions(5).failures(0),
        new("N2+w S,D,S v4 rec0 fail0, two attempts", 2, "S,D,S")
            .versions(4)
            .failures(0)
            .reconnects(0)
            .deletes()
            .uncleared(),
    ]
}

/// Rules of snapshots that are broken on purpose.
pub(crate) fn broken_snapshot() -> Vec<Config> {
    let small = |config: Config| config.failures(0).reconnects(0).uncleared().unprobed();
    vec![
        small(new("S1 who was asked for a snapshot is counted, answer or not", 2, "S"))
            .versions(2)
            .without(CountedUnanswered),
        small(new("S2 writes go on while a snapshot is taken", 2, "S+W")).versions(2).without(WritesNotHeld),
        small(new("S3 a snapshot is asked for while a write is in flight", 2, "S+W"))
            .versions(2)
            .without(SnapshotBesideWrite),
        small(new("S4 a second attempt has the name of the first", 2, "S+W")).versions(2).without(NameUsedAgain),
        small(new("S5 a snapshot is there when all have answered, whatever the record says", 2, "S"))
            .versions(2)
            .without(SnapshotUnrecorded),
        small(new("S6 a snapshot is deleted before the host's own record is stable", 2, "S|R"))
            .versions(2)
            .deletes()
            .calm(0b011)
            .without(DeletedEarly),
        small(new("S7 a snapshot is asked for before all is settled", 2, "W|S")).versions(2).without(SnapshotUnsettled),
        new("S8 who has replaced a replica is believed to have its snapshots", 2, "S")
            .replacements(1)
            .versions(5)
            .failures(0)
            .unprobed()
            .without(SnapshotOfBlank),
        small(new("S10 a host deletes what a newer one has asked for", 2, "R|S"))
            .versions(2)
            .attempts(1)
            .deletes()
            .calm(0b011)
            .without(DeletesNewer),
        small(new("S11 what the proposed record does not name any more is deleted before that is stable", 2, "S,D"))
            .versions(3)
            .attempts(1)
            .deletes()
            .without(DeletesNamed),
        small(new("S12 a snapshot is said to be gone before the record without it is stable", 2, "S,D"))
            .versions(3)
            .attempts(1)
            .without(GoneEarly),
        new("S9 a replica that joins is asked, too", 2, "S")
            .out(0b010)
            .versions(3)
            .failures(0)
            .unprobed()
            .without(SnapshotOfJoining),
    ]
}

/// The volume grows by a region while it is used.
pub(crate) fn grow() -> Vec<Config> {
    let small = |config: Config| config.grows().reconnects(0).failures(0);
    vec![
        new("N1 G,W1|R1", 1, "G,W1|R1").grows(),
        small(new("N2+w G,W1|R1 v2 rec0 fail0, host 1 calm", 2, "G,W1|R1")).versions(2).calm(0b010).uncleared(),
        new("N2+w G,W1 alone v4 fail1 rec1", 2, "G,W1").grows().versions(4),
        new("N2+w one out, G,W1 alone v4 fail0 rec1", 2, "G,W1").grows().out(0b010).versions(4).failures(0),
        small(new("N2+w G|G,W1 v2 rec0 fail0", 2, "G|G,W1")).versions(2).uncleared(),
        new("N2+w zeroes, one out, G,W1 alone v4", 2, "G,W1").grows().grown_is_zero().out(0b010).versions(4),
        small(new("N3 zeroes, G,W1|R1 v2 rec0 fail0, host 1 calm", 3, "G,W1|R1"))
            .grown_is_zero()
            .versions(2)
            .calm(0b010)
            .uncleared(),
        new("N2+w replaced1 G,W1 alone v6 fail0 rec1", 2, "G,W1").grows().replacements(1).versions(6).failures(0),
    ]
}

/// Rules of growing that are broken on purpose.
pub(crate) fn broken_grow() -> Vec<Config> {
    let small = |config: Config| config.grows().failures(0).reconnects(0).uncleared();
    vec![
        small(new("G1 the new region is used before the record that has it is stable", 2, "G+W1"))
            .versions(2)
            .without(UsedEarly),
        small(new("G2 the record says the size before all that are needed have grown", 2, "G"))
            .grown_is_zero()
            .versions(2)
            .without(GrownEarly),
        small(new("G3 the new region is believed to read as zeroes", 2, "G,R1")).versions(2).without(NotZeroed),
        new("G4 a replica joins that has not grown", 2, "G")
            .grows()
            .grown_is_zero()
            .out(0b010)
            .versions(3)
            .failures(0)
            .without(JoinUngrown),
    ]
}
