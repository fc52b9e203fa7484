//! Reading a stripe: the columns that are needed, or whichever others answer sooner or at all.
//!
//! The plain way asks the data columns that hold what is wanted. A column that is missing, fails, does not verify or is late costs
//! the same granules of as many others as make up `k`; where a member is known to be slow, that way is taken at once.

use std::time::Duration;

use engine::Buf;
use engine::time::{self, Instant};

use super::balance::{Way, hedge_after, left_out};
use super::chunk::Region;
use super::gather::Gather;
use super::pending::Pending;
use super::rope::Rope;
use super::rows::ChunkPlace;
use super::shape::ROW_BYTES;
use super::stripe::Stripe;
use super::write::{PATIENCE, Stripes};

/// A read of one stripe under way.
struct Reading<'a> {
    stripes: &'a Stripes,
    stripe: &'a Stripe,
    place: &'a ChunkPlace,
    gather: Gather<'a>,
    pending: Pending<(usize, usize), Result<Buf, device::Error>>,
    /// The longest that a column that was asked was expected to take.
    expected: u64,
    way: Way,
}

impl Stripes {
    /// Bytes `from..to` of a stripe's data.
    ///
    /// # Errors
    /// They can't be had: which columns failed, and how.
    pub(crate) async fn read(
        &self,
        stripe: &Stripe,
        place: &ChunkPlace,
        from: usize,
        to: usize,
    ) -> Result<Rope, String> {
        let layout = self.members.layout();
        let cut = stripe.cut(layout.shape);
        let gather = Gather::new(stripe, cut, layout.seed, &self.code, from, to);
        let (pending, way) = (Pending::new(), Way::Plain);
        let mut reading = Reading { stripes: self, stripe, place, gather, pending, expected: 0, way };
        let read = reading.run().await;
        let way = if read.is_ok() { reading.way } else { Way::Failed };
        self.reads[way as usize].update(|reads| reads + 1);
        read.map(|()| reading.gather.give(from, to))
    }

    /// Bytes of a stripe's column that lies in this region.
    pub(crate) fn read_column(
        &self,
        stripe: &Stripe,
        region: Region,
        from: usize,
        length: usize,
    ) -> impl Future<Output = Result<Buf, device::Error>> + use<> {
        let member = self.members.get(region.member);
        let offset = u64::from(stripe.id.row) * ROW_BYTES as u64 + from as u64;
        async move {
            let unknown = || device::Error::NotConnected("a member that is not known".into());
            member.ok_or_else(unknown)?.read(region.region, offset, length).await
        }
    }
}

impl Reading<'_> {
    async fn run(&mut self) -> Result<(), String> {
        let begun = time::now();
        self.begin(begun);
        // Until then those that were asked last are waited for. Nothing is left to ask: until the end.
        let mut limit = self.hedge_at(begun);
        // Columns that are needed to make up for another one; more, where what was made does not verify.
        let mut needed = self.gather.cut.shape().data();
        let is_whole = self.gather.wanted().all(|column| self.gather.is_usable(column));
        if !is_whole || self.leaves_out() {
            self.way = if is_whole && self.has_all(begun) { Way::Balanced } else { Way::Degraded };
            self.widen(needed);
            limit = self.hedge_at(begun);
        }
        loop {
            match self.pending.next_until(begun + limit).await {
                Some(((column, from), result)) => {
                    self.gather.absorb(column, from, result);
                    if self.gather.is_done() {
                        return Ok(());
                    }
                    if !self.gather.is_usable(column) && self.widen(needed) {
                        self.way = Way::Degraded;
                        limit = limit.max(self.hedge_at(begun));
                    }
                    if self.gather.there(self.gather.all_open()) >= needed {
                        self.gather.solve();
                    }
                }
                None if self.pending.is_empty() => {
                    self.gather.solve();
                    needed = if self.gather.is_done() || self.widen(needed) { needed } else { needed + 1 };
                    limit = limit.max(self.hedge_at(begun));
                }
                // Whoever is asked instead may hang, too.
                None if limit < PATIENCE => {
                    let late: Vec<usize> = self.pending.keys().map(|(column, _)| *column).collect();
                    self.gather.mark_late(late.into_iter());
                    let is_wider = self.widen(needed);
                    self.way = if is_wider { self.way.max(Way::Hedged) } else { self.way };
                    limit = if is_wider { self.hedge_at(begun) } else { PATIENCE };
                }
                None => return Err("members did not answer in time".into()),
            }
            if self.gather.is_done() {
                return Ok(());
            }
            if needed > self.gather.cut.shape().columns() {
                return Err(self.told());
            }
        }
    }

    /// When help is called for what was asked now, from the begin on.
    fn hedge_at(&self, begun: Instant) -> Duration {
        (begun.elapsed() + hedge_after(self.expected)).min(PATIENCE)
    }

    /// Asks the columns of the plain way, but those that are too slow.
    fn begin(&mut self, now: Instant) {
        let usable: Vec<usize> = self.gather.wanted().filter(|column| self.gather.is_usable(*column)).collect();
        let all = self.gather.wanted().fold(0, |all, column| all | self.gather.wanted_of(column));
        let nanos = |column: usize| {
            let bytes = self.gather.bytes(column, all).map_or(0, |(_, length)| length);
            if bytes == 0 { 0 } else { self.stripes.members.finish_nanos(self.place.columns[column], bytes, now) }
        };
        let plain: Vec<(usize, u64)> = usable.iter().map(|column| (*column, nanos(*column))).collect();
        let shape = self.gather.cut.shape();
        let others = (0..shape.columns()).filter(|column| !usable.contains(column) && self.gather.is_usable(*column));
        let mut others: Vec<u64> = others.map(nanos).collect();
        // With all others of the plain way there, one that is left out needs what they lack of k, and itself.
        let more = (shape.data() + 1).saturating_sub(usable.len());
        let left_out = left_out(&plain, &mut others, more);
        for column in usable.into_iter().filter(|column| !left_out.contains(column)) {
            self.ask(column, self.gather.wanted_of(column), now);
        }
    }

    /// Whether a usable column of the plain way was not asked.
    fn leaves_out(&self) -> bool {
        self.gather
            .wanted()
            .any(|column| self.gather.is_usable(column) && self.pending.keys().all(|(asked, _)| *asked != column))
    }

    /// Whether the members of the plain way can all be reached.
    fn has_all(&self, now: Instant) -> bool {
        let nanos = |column: usize| self.stripes.members.finish_nanos(self.place.columns[column], 0, now);
        self.gather.wanted().all(|column| nanos(column) != u64::MAX)
    }

    /// Asks more columns, the fastest first, until so many have what is open. False: there was none to ask.
    fn widen(&mut self, needed: usize) -> bool {
        let open = self.gather.all_open();
        let now = time::now();
        let mut askable: Vec<(u64, usize)> = Vec::new();
        for column in self.gather.askable(open) {
            let bytes = self.gather.bytes(column, open).map_or(0, |(_, length)| length);
            askable.push((self.stripes.members.finish_nanos(self.place.columns[column], bytes, now), column));
        }
        askable.sort_unstable();
        let mut has_asked = false;
        for (_, column) in askable {
            if self.gather.expected(open) >= needed {
                break;
            }
            self.ask(column, open, now);
            has_asked = true;
        }
        has_asked
    }

    fn ask(&mut self, column: usize, granules: u64, now: Instant) {
        let Some((from, length)) = self.gather.bytes(column, granules) else { return };
        self.gather.ask(column, granules);
        let region = self.place.columns[column];
        let nanos = self.stripes.members.finish_nanos(region, length, now);
        // A member that can't be reached fails at once, and is not waited for.
        if nanos != u64::MAX {
            self.expected = self.expected.max(nanos);
        }
        self.pending.push((column, from), self.stripes.read_column(self.stripe, region, from, length));
    }

    fn told(&self) -> String {
        let member = |column: usize| self.place.columns[column].member;
        let faults = self.gather.faults();
        let faults: Vec<String> = faults
            .into_iter()
            .map(|(column, fault)| format!("column {column} (member {}) {fault}", member(column)))
            .collect();
        let shape = self.gather.cut.shape();
        format!("of {} columns {} are needed: {}", shape.columns(), shape.data(), faults.join("; "))
    }
}
