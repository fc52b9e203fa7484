//! The rules of the protocol that can be broken one by one.

/// Variations of the protocol: the default is what Yagura does, each flag departs from it.
#[derive(Clone, Default, Debug)]
pub struct Rules {
    /// One flat timestamp for puts and conditional operations, puts subject to promises.
    pub flat: bool,
    /// … puts ignore promises.
    pub flat_put_ignores_promise: bool,
    /// … a refused put tries again with a new timestamp.
    pub flat_put_retries: bool,
    /// … a superseded put counts as done, also where a promise would refuse it.
    pub flat_superseded_first: bool,
    /// A get returns the newest entry without writing it back.
    pub no_write_back: bool,
    /// A get writes a conditional operation's entry back as if it were a put's.
    pub write_back_ignores_promise: bool,
    /// Conditional operations leave no operation id.
    pub no_operation_id: bool,
    /// A conditional operation goes on although a put came between its attempts.
    pub retry_across_era: bool,
    /// A put is done when one member holds something newer.
    pub superseded_once_is_done: bool,
    /// Operation ids are reused after a restart.
    pub reuse_operation_id: bool,
    /// A failed condition is reported on a value that only a minority may hold.
    pub fail_without_write_back: bool,
    /// ACCEPT looks at the timestamp before the promise.
    pub superseded_before_promise: bool,
    /// Conditional operations in two round trips if all members answer alike.
    pub fast: bool,
    /// … already if a majority does.
    pub fast_majority: bool,
    /// … without looking whether a promise stands.
    pub fast_ignores_promise: bool,
    /// … and such an entry is read from a majority.
    pub fast_majority_read: bool,
    /// ACCEPT also promises the host's next ballot, so that the repeat needs no prepare.
    pub reserve: bool,
    /// A host may report any operation as unknown at any time and go on.
    pub give_up: bool,
    /// A delete removes the entry, timestamp and all.
    pub delete_forgets: bool,
    /// What every member has refused is as if it had not been sent, see [`super::struck`].
    pub strike: bool,
    /// … already if one has.
    pub strike_at_one: bool,
    /// So it is where some were never sent it: they do not get it once the host has gone on.
    pub strike_unsent: bool,
    /// … though they get it yet.
    pub unsent_comes_later: bool,
    /// A member that lost its data keeps its vote.
    pub lost_member_votes: bool,
    /// A lost member is rebuilt from a single other.
    pub rebuild_from_one: bool,
    /// Between two sets of homes a lost member is rebuilt from its neighbours in the old one alone.
    pub rebuild_asks_old_alone: bool,
    /// … in the new one alone.
    pub rebuild_asks_new_alone: bool,
    /// A lost member is rebuilt from half of the homes where half may know alone, as a change was taken back.
    pub rebuild_from_half_taken_back: bool,
    /// A lost member is rebuilt while operations count on acknowledgements it gave before.
    pub rebuild_at_once: bool,
    /// A lost member is rebuilt without the promises that the others remember.
    pub rebuild_forgets_promises: bool,
    /// A lost member is rebuilt with what a conditional operation wrote although a higher ballot may have been told that it is not
    /// there.
    pub rebuild_past_promise: bool,
    /// A lost member is rebuilt with an open seal.
    pub rebuild_unsealed: bool,
    /// A lost member is rebuilt by a host that goes by the map of before it was lost.
    pub rebuild_by_older_map: bool,
    /// A member does not look at its seal: a compare-and-write of an older epoch succeeds.
    pub seal_ignored: bool,
    /// Between two sets of homes one home of the old set fewer is asked than meets every majority.
    pub old_quorum_too_small: bool,
    /// Any half of the homes is enough where some were given up.
    pub any_half: bool,
    /// The migrator believes an old home that is not sealed yet.
    pub migrate_unsealed: bool,
    /// Who cleans a page drops what is not at home there also where it is sealed for that epoch already.
    pub clean_behind_seal: bool,
    /// A put that met a seal starts again although its stores were sent.
    pub put_restarts_after_stores: bool,
    /// An absent entry counts as newer than everything of older epochs.
    pub absent_sorts_as_epoch: bool,
    /// A conditional operation on an absent key starts from timestamp zero.
    pub absent_based_on_zero: bool,
    /// A conditional operation on an absent key starts from the operation's own epoch.
    pub absent_based_on_epoch: bool,
    /// Counters start at zero in every epoch.
    pub counter_without_epoch: bool,
    /// The age of an entry is that of its put, whoever deleted it later.
    pub age_of_put: bool,
    /// A tombstone is dropped together with a promise that may still be accepted.
    pub drop_forgets_promises: bool,
    /// The sweep is content with a majority.
    pub sweep_at_majority: bool,
    /// Members may be full: a get whose write-back is refused may answer without, see [`super::room`].
    pub full: bool,
    /// … of three or more homes also with what a conditional operation wrote.
    pub full_conditional: bool,
    /// … between two sets of homes also by old homes that are sealed already.
    pub full_sealed: bool,
    /// … by a majority that has answered, not by all.
    pub full_majority: bool,
}
