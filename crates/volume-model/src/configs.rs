//! What is searched of the mirror itself, and all groups.

use crate::config::Broken::*;
use crate::config::Config;
use crate::extensions;
use crate::notation::new;

/// The groups of what must pass.
pub const SOUND: [&str; 16] = [
    "one",
    "replace",
    "degraded",
    "resume",
    "two",
    "both",
    "lease",
    "three",
    "mid",
    "volatile",
    "power",
    "uncounted",
    "handover",
    "snapshot",
    "grow",
    "big",
];

/// The configurations of a group; none, if there is no such group.
pub fn sound(group: &str) -> Vec<Config> {
    match group {
        "one" => one(),
        "replace" => replace(),
        "degraded" => degraded(),
        "resume" => resume(),
        "two" => two(),
        "both" => both(),
        "lease" => lease(),
        "three" => three(),
        "mid" => mid(),
        "volatile" => volatile(),
        "power" => extensions::power(),
        "uncounted" => extensions::uncounted(),
        "handover" => extensions::handover(),
        "snapshot" => extensions::snapshot(),
        "grow" => extensions::grow(),
        "big" => [big(), extensions::big()].concat(),
        _ => Vec::new(),
    }
}

/// One host, and a fresh one that reaches any of the holders, as everywhere.
fn one() -> Vec<Config> {
    vec![
        new("N1 W,W,R", 1, "W,W,R").reconnects(2),
        new("N2+w W,W,R fail2 rec2 v5", 2, "W,W,R").failures(2).reconnects(2).versions(5),
        new("N3 W,W,R fail1 rec2 v5", 3, "W,W,R").failures(1).reconnects(2).versions(5),
        new("N3 W,W,R fail2 rec2 v5", 3, "W,W,R").failures(2).reconnects(2).versions(5),
        new("N3 W,W,W,W fail2 rec2 v5", 3, "W,W,W,W").failures(2).reconnects(2).versions(5),
    ]
}

/// Replicas are replaced by empty devices, and the old ones come back.
fn replace() -> Vec<Config> {
    vec![
        new("N2+w W,W,R replaced1 fail1 rec1 v6", 2, "W,W,R").replacements(1).versions(6),
        new("N3 W,W replaced1 back2 fail1 rec1 v5", 3, "W,W").replacements(1).returns(2).versions(5),
        new("N3 W,W,R replaced1 fail1 rec1 v6", 3, "W,W,R").replacements(1).versions(6),
        new("N3 W,W replaced2 fail0 rec1 v6", 3, "W,W").replacements(2).failures(0).versions(6),
    ]
}

/// A replica or two start out of sync, with an old value.
fn degraded() -> Vec<Config> {
    vec![
        new("N3 one out, W,R alone v3", 3, "W,R").out(0b100).versions(3),
        new("N3 one out, W,W,W alone v4 fail2 rec2", 3, "W,W,W").out(0b100).versions(4).failures(2).reconnects(2),
        new("N3 two out, W,W,R alone v4 fail1 rec2", 3, "W,W,R").out(0b110).versions(4).reconnects(2),
        new("N2+w one out, W,W,R alone v4", 2, "W,W,R").out(0b010).versions(4).failures(2).reconnects(2),
        new("N2+w one out, R|W v2 host 1 calm", 2, "R|W").out(0b010).versions(2).failures(0).calm(0b010).uncleared(),
        new("N3 one out, R|W v2 host 1 calm", 3, "R|W").out(0b100).versions(2).failures(0).calm(0b010).uncleared(),
        new("N2+w one out, W|R v2 fail0 host 1 calm", 2, "W|R")
            .out(0b010)
            .versions(2)
            .failures(0)
            .calm(0b010)
            .uncleared(),
        new("N3 one out, W|R v2 fail0 host 1 calm", 3, "W|R")
            .out(0b100)
            .versions(2)
            .failures(0)
            .calm(0b010)
            .uncleared(),
    ]
}

/// What a replica that joins has got is cleared in its log, and a resync that begins anew goes on there.
fn resume() -> Vec<Config> {
    vec![
        new("N3 one out, two regions, W1,R rec2 v3", 3, "W1,R")
            .out(0b100)
            .regions(2)
            .reconnects(2)
            .versions(3)
            .resumed(),
        new("N2+w one out, two regions, W1,R v4", 2, "W1,R").out(0b010).regions(2).versions(4).resumed(),
        new("N3 one out, W,W v4 fail2 rec2", 3, "W,W").out(0b100).versions(4).failures(2).reconnects(2).resumed(),
        new("N3 two out, W,R v4 rec2", 3, "W,R").out(0b110).versions(4).reconnects(2).resumed(),
        new("N2+w W,W,R replaced1 fail1 rec1 v6", 2, "W,W,R").replacements(1).versions(6).resumed(),
        new("N3 W,W replaced1 back2 fail1 rec1 v5", 3, "W,W").replacements(1).returns(2).versions(5).resumed(),
        new("N2+w one out, R|W v2 host 1 calm", 2, "R|W").out(0b010).versions(2).failures(0).calm(0b010).resumed(),
        new("N3 one out, W|R v2 fail0 host 1 calm", 3, "W|R").out(0b100).versions(2).failures(0).calm(0b010).resumed(),
    ]
}

/// Host 0 is attached; host 1 attaches at any time.
fn two() -> Vec<Config> {
    vec![
        new("N1 W,R|W,R", 1, "W,R|W,R"),
        new("N3 W|R v1 rec0", 3, "W|R").versions(1).reconnects(0),
        new("N3 R|W v2 rec1 fail1 host 1 calm", 3, "R|W").versions(2).calm(0b010).uncleared(),
        new("N3 R,R|W v1 rec0", 3, "R,R|W").versions(1).reconnects(0),
        new("N2+w W|R v2 rec0 host 1 calm", 2, "W|R").versions(2).reconnects(0).calm(0b010).uncleared(),
        new("N2+w W|R v2 rec1 host 1 calm", 2, "W|R").versions(2).calm(0b010).uncleared(),
        new("N3 W|R v2 rec1 host 1 calm", 3, "W|R").versions(2).calm(0b010).uncleared(),
        new("N3 W|R,R v2 rec1 host 0 calm", 3, "W|R,R").versions(2).calm(0b001).uncleared(),
    ]
}

/// Nobody is attached: two hosts attach at once.
fn both() -> Vec<Config> {
    vec![
        new("N2+w both attach, W|R calm", 2, "W|R").unattached().versions(1).reconnects(0).calm(0b011).uncleared(),
        new("N3 both attach, W|R calm", 3, "W|R").unattached().versions(1).reconnects(0).calm(0b011).uncleared(),
        new("N3 both attach, W|R late preempts land", 3, "W|R")
            .unattached()
            .late_preempts()
            .versions(1)
            .reconnects(0)
            .calm(0b011)
            .uncleared(),
        new("N3 both attach, W|R rec1", 3, "W|R").unattached().versions(1).failures(0).uncleared().unresynced(),
    ]
}

/// The lease runs out, and is renewed by reads of the promised ballots.
fn lease() -> Vec<Config> {
    vec![
        new("N3 R,R|W v1 rec0 host 1 calm", 3, "R,R|W")
            .expiries(1)
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010)
            .uncleared(),
        new("N2+w R,R|W v1 rec0 host 1 calm", 2, "R,R|W")
            .expiries(1)
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b010)
            .uncleared(),
        new("N3 R|W superseded hosts go on", 3, "R|W")
            .expiries(1)
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b011)
            .uncleared()
            .superseded_go_on(),
        new("N3 R,R|W v2 rec1 fail1 host 1 calm", 3, "R,R|W").expiries(1).versions(2).calm(0b010).uncleared(),
    ]
}

/// Three attachments, in all orders.
fn three() -> Vec<Config> {
    vec![
        new("N2+w W|R|R calm", 2, "W|R|R").versions(1).reconnects(0).calm(0b111).uncleared().unprobed(),
        new("N3 W|R|R calm", 3, "W|R|R").versions(1).reconnects(0).calm(0b111).uncleared().unprobed(),
    ]
}

/// Larger ones of them all.
fn mid() -> Vec<Config> {
    vec![
        new("N3 W|R v2 both hosts fail, reconnect, resync", 3, "W|R").versions(2).uncleared(),
        new("N2+w W|R v2 both hosts fail, reconnect, resync", 2, "W|R").versions(2).uncleared(),
        new("N3 W+R|R v2 rec0 host 1 calm (a read beside the write)", 3, "W+R|R")
            .versions(2)
            .reconnects(0)
            .calm(0b010)
            .uncleared(),
        new("N3 W,R|W,R v1 rec1 fail1", 3, "W,R|W,R").versions(1).uncleared(),
        new("N3 one out W|R v3 fail1 rec1 host 1 calm", 3, "W|R").out(0b100).versions(3).calm(0b010),
        new("N3 one out W|R,R v2 fail0 host 0 calm (host 1 resyncs)", 3, "W|R,R")
            .out(0b100)
            .versions(2)
            .failures(0)
            .calm(0b001),
        new("N2+w one out W|R,R v3 host 0 calm (host 1 resyncs)", 2, "W|R,R").out(0b010).versions(3).calm(0b001),
        new("N3 replaced1 W|R v3 fail0 host 1 calm", 3, "W|R")
            .replacements(1)
            .failures(0)
            .versions(3)
            .calm(0b010)
            .uncleared(),
        new("N3 one out, replaced1 back2 R|W v2 fail0 host 1 calm", 3, "R|W")
            .out(0b100)
            .versions(2)
            .failures(0)
            .calm(0b010)
            .replacements(1)
            .returns(2)
            .uncleared(),
        new("N3 W|R|R v2 rec0 hosts 1, 2 calm", 3, "W|R|R")
            .versions(2)
            .reconnects(0)
            .calm(0b110)
            .uncleared()
            .unprobed(),
        new("N2+w W|W|R v2 rec0 hosts 1, 2 calm", 2, "W|W|R")
            .versions(2)
            .reconnects(0)
            .calm(0b110)
            .uncleared()
            .unprobed(),
    ]
}

/// Data are volatile until they are flushed, and replicas lose power.
fn volatile() -> Vec<Config> {
    vec![
        new("N3 W,W,R volatile, power1 each, v4 rec1 fail1", 3, "W,W,R").power_losses(1).versions(4).reconnects(1),
        new("N2+w W,W,R volatile, power1 each, v5 rec2 fail1", 2, "W,W,R").power_losses(1).versions(5).reconnects(2),
        new("N3 W|R volatile, power1 each, v2 rec0 fail0 host 1 calm", 3, "W|R")
            .power_losses(1)
            .versions(2)
            .reconnects(0)
            .failures(0)
            .calm(0b010),
    ]
}

/// Those that need hours, or do not end.
fn big() -> Vec<Config> {
    vec![
        new("N3 W0,W0+W1,R0 two regions fail1 rec1 v4", 3, "W0,W0+W1,R0").regions(2).versions(4),
        new("N3 W|R v2 host 1 calm, superseded hosts go on", 3, "W|R").versions(2).superseded_go_on().calm(0b010),
        new("N2+w W|R v2 host 1 calm, superseded hosts go on", 2, "W|R").versions(2).superseded_go_on().calm(0b010),
        new("N3 W|R v3 clear", 3, "W|R").versions(3),
        new("N2+w W|R v3 clear", 2, "W|R").versions(3),
        new("N3 W+R|R v2 (a read beside the write)", 3, "W+R|R").versions(2).uncleared(),
        new("N3 W,R|W,R v2", 3, "W,R|W,R").versions(2).uncleared(),
        new("N3 one out W|R v3", 3, "W|R").out(0b100).versions(3),
        new("N2+w one out W|R,R v3", 2, "W|R,R").out(0b010).versions(3),
        new("N3 one out W,W|R v3 host 1 calm", 3, "W,W|R").out(0b100).versions(3).calm(0b010),
        new("N3 replaced1 W|R v3", 3, "W|R").replacements(1).failures(0).versions(3).uncleared(),
        new("N2+w replaced1 back2 W|W v2", 2, "W|W").replacements(1).returns(2).failures(0).versions(2).uncleared(),
        new("N3 W0,W1|R0,R1 two regions v2", 3, "W0,W1|R0,R1").regions(2).versions(2).uncleared(),
        new("N3 W|R|R v2 fail1 rec0 host 2 calm", 3, "W|R|R")
            .versions(2)
            .reconnects(0)
            .calm(0b100)
            .uncleared()
            .unprobed(),
        new("N2+w W|W|R v2 fail1 rec0 host 2 calm", 2, "W|W|R")
            .versions(2)
            .reconnects(0)
            .calm(0b100)
            .uncleared()
            .unprobed(),
    ]
}

/// Each rule broken on purpose: every one of them loses data.
pub fn broken() -> Vec<Config> {
    [
        broken_first(),
        broken_later(),
        broken_last(),
        extensions::broken(),
        extensions::broken_handover(),
        extensions::broken_snapshot(),
        extensions::broken_grow(),
    ]
    .concat()
}

/// Those of acknowledging, reading and fencing.
fn broken_first() -> Vec<Config> {
    vec![
        new("B01 acknowledge before the smaller set is at a majority", 3, "W").versions(2).without(AcknowledgeEarly),
        new("B02 majority of the in-sync replicas instead of the holders", 3, "W")
            .versions(3)
            .failures(2)
            .without(MajorityOfInSync),
        new("B03 the first record that answers is believed", 3, "W").versions(2).without(FirstRecord),
        new("B04 reading before dirty regions are settled", 3, "W|R,R")
            .versions(1)
            .reconnects(0)
            .calm(0b011)
            .uncompared()
            .uncleared()
            .unprobed()
            .without(NoSettling),
        new("B05 a read released while a write to it is in flight, then settled to the older copy", 3, "W+R")
            .versions(2)
            .without(ReadsNotHeld),
        new("B06 log cleared before all have the data", 3, "W").versions(2).without(ClearedEarly),
        new("B07 data commands not fenced by a reservation", 3, "W|R")
            .versions(1)
            .reconnects(0)
            .uncleared()
            .superseded_go_on()
            .without(NoFence),
        new("B08 a member used before the record is checked there", 3, "W|W")
            .versions(2)
            .superseded_go_on()
            .without(Unchecked),
        new("B09 joining although writes during resync were missed", 3, "W,W,W")
            .versions(3)
            .uncleared()
            .without(JoinMissesWrites),
        new("B10 outcome of the record change unknown, acknowledged all the same", 3, "W")
            .versions(2)
            .failures(3)
            .without(UnknownIsDone),
        new("B11 an empty replacement counts as a holder of the record", 3, "W")
            .versions(2)
            .replacements(1)
            .without(BlankCounts),
        new("B12 two replicas, no witness, one of them is enough", 2, "W").no_witness().majority(1).versions(2),
        new("B13 reads without a lease, no wait at attach", 3, "R|W")
            .versions(2)
            .superseded_go_on()
            .unprobed()
            .without(NoLease),
        new("B14 reconnect with the same key: own old commands still execute", 3, "W,W").versions(3).without(SameKey),
        new("B15 resync ignores the returned replica's own log", 3, "W|R,R")
            .versions(2)
            .failures(0)
            .uncleared()
            .unprobed()
            .without(OwnLogIgnored),
    ]
}

/// Those of resynchronisation, replacement, attaching and power.
fn broken_later() -> Vec<Config> {
    vec![
        new("B17 reads from the union of the possible sets (replica 2 starts out of sync)", 3, "R|W")
            .out(0b100)
            .versions(2)
            .calm(0b010)
            .failures(0)
            .unprobed()
            .uncleared()
            .without(ReadsFromUnion),
        new("B18 a proposed joiner is not needed for an acknowledgement until the record is stable", 3, "W,W")
            .versions(3)
            .failures(2)
            .uncleared()
            .without(JoinNeededLate),
        new("B19 resync copies while the region is written", 3, "W,W,W")
            .versions(3)
            .uncleared()
            .without(CopyBesideWrite),
        new("B20 a replacement's log starts clean", 3, "W,W,W")
            .versions(5)
            .failures(0)
            .replacements(1)
            .without(BlankIsClean),
        new("B21 log cleared to clean while a replica is away", 3, "W,W").versions(3).without(ClearedWhileAway),
        new("B22 mark after the data", 3, "W|R").versions(1).without(MarkedAfter),
        new("B23 a replacement becomes a holder by its own vote (and the old one comes back)", 3, "W,W,W")
            .versions(4)
            .replacements(1)
            .returns(1)
            .uncleared()
            .without(OwnVote),
        new("B25 reservation lost in a restart", 3, "W|R")
            .versions(1)
            .uncleared()
            .superseded_go_on()
            .reconnects(0)
            .without(ReservationLost),
        new("B26 an empty replacement believed in sync", 3, "W").versions(2).replacements(1).without(BlankInSync),
        new("B27 reservation lets others read, no wait at attach", 3, "R|W")
            .versions(1)
            .superseded_go_on()
            .unprobed()
            .without(OthersRead),
        new("B28 a late promise counts as a vote for the record", 3, "W|R")
            .versions(2)
            .reconnects(0)
            .without(PromiseVotes),
        new("B30 the joiner's log does not get the regions that others lack", 3, "W,W,R")
            .out(0b110)
            .versions(4)
            .reconnects(2)
            .without(CopyUnmarked),
    ]
}

/// Those of a resync that begins anew, of volatile caches and of leases.
fn broken_last() -> Vec<Config> {
    vec![
        new("R1 who joins is cleared although somebody lacks the region", 3, "W,W,R")
            .out(0b110)
            .versions(4)
            .reconnects(2)
            .resumed()
            .without(JoinerCleared),
        new("V1 log cleared without a flush", 3, "W,R,R").power_losses(1).versions(3).failures(0).without(NoFlush),
        new("V2 a replica that lost power stays in sync", 3, "W,R")
            .power_losses(1)
            .versions(3)
            .without(PowerLossIgnored),
        new("L1 a lease counts from the answer", 3, "R|W")
            .expiries(1)
            .versions(1)
            .reconnects(0)
            .failures(0)
            .calm(0b011)
            .uncleared()
            .unprobed()
            .superseded_go_on()
            .without(LeaseFromTheAnswer),
    ]
}

/// More of them, which take seconds each.
pub fn broken_large() -> Vec<Config> {
    vec![
        new("B16 settling without marking the target", 3, "W|R").versions(2).without(SettleUnmarked),
        new("B29 attaching to a half-done change of holders by the new ones alone", 3, "R|W")
            .out(0b100)
            .versions(2)
            .failures(0)
            .calm(0b010)
            .replacements(1)
            .returns(2)
            .uncleared()
            .without(NewHoldersAlone),
        new("B24 attach without promises (highest epoch, tie by host)", 3, "W|W")
            .unattached()
            .versions(2)
            .uncleared()
            .reconnects(0)
            .without(NoPromises),
        extensions::broken_large(),
    ]
}
