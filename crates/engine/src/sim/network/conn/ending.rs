//! How connections end: by their programs, by their kernels, by the network.

use std::collections::VecDeque;
use std::io;

use super::super::Net;
use super::{Item, pair};
use crate::sim::core::Core;
use crate::sim::event::Event;
use crate::sim::id::{ConnId, NodeId, Side};

impl Net {
    /// The network resets the connection: both ends learn it, each in its own time; what was under way is gone.
    pub(in crate::sim) fn sever(&mut self, core: &mut Core, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if std::mem::replace(&mut conn.severed, true) {
            return;
        }
        core.note(conn.ends[0].node, format_args!("c{} severed", id.0));
        for side in [Side::CLIENT, Side::SERVER] {
            let delay = core.link_delay();
            core.after(delay, Event::Severed { conn: id, side });
        }
    }

    /// [`Net::sever`] for every connection between the two.
    pub(in crate::sim) fn sever_all(&mut self, core: &mut Core, a: NodeId, b: NodeId) {
        let ids: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| conn.joins(pair(a, b))).map(|(id, _)| *id).collect();
        for id in ids {
            self.sever(core, id);
        }
    }

    /// [`Event::Severed`].
    pub(in crate::sim) fn severed(&mut self, core: &mut Core, id: ConnId, side: Side) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.end_mut(side).break_with(core, io::ErrorKind::ConnectionReset);
        }
    }

    /// Ends both directions; the handle stays.
    pub(in crate::sim) fn shutdown(&mut self, core: &mut Core, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = conn.end_mut(side);
        if end.shut || end.closed || end.broken {
            return;
        }
        end.shut = true;
        end.wake(core);
        self.launch(core, id, side, Item::Fin);
    }

    /// The program has dropped its handle. Unread bytes make it a reset, as Linux does (RFC 2525 §2.17).
    pub(in crate::sim) fn close(&mut self, core: &mut Core, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = conn.end_mut(side);
        if std::mem::replace(&mut end.closed, true) {
            return;
        }
        end.wake(core);
        let last = match (end.broken, end.inbound.is_empty(), end.shut) {
            (true, _, _) | (false, true, true) => None,
            (false, true, false) => Some(Item::Fin),
            (false, false, _) => Some(Item::Reset),
        };
        end.inbound = VecDeque::new();
        core.note(end.node, format_args!("c{} closed", id.0));
        if let Some(item) = last {
            self.launch(core, id, side, item);
        }
        self.forget(id);
    }

    /// The kernel of `side` resets the connection.
    pub(in crate::sim::network) fn reset_by(&mut self, core: &mut Core, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = conn.end_mut(side);
        if std::mem::replace(&mut end.closed, true) || std::mem::replace(&mut end.broken, true) {
            return self.forget(id);
        }
        end.inbound = VecDeque::new();
        end.wake(core);
        self.launch(core, id, side, Item::Reset);
        self.forget(id);
    }

    /// The program gives the connection up: its handle stays, and finds it reset. Of what it sent, any prefix
    /// arrives before the reset.
    pub(in crate::sim) fn abort(&mut self, core: &mut Core, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = conn.end_mut(side);
        if end.closed || end.broken {
            return;
        }
        let keep = core.rngs.links.index(end.flight.len() + 1);
        end.flight.truncate(keep);
        end.inbound = VecDeque::new();
        (end.broken, end.error) = (true, Some(io::ErrorKind::ConnectionReset));
        core.note(end.node, format_args!("c{} aborted", id.0));
        end.wake(core);
        self.launch(core, id, side, Item::Reset);
    }

    /// The node of `side` has crashed: of what it sent, any prefix arrives before the reset.
    pub(in crate::sim::network) fn die(&mut self, core: &mut Core, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let end = conn.end_mut(side);
        let keep = core.rngs.links.index(end.flight.len() + 1);
        end.flight.truncate(keep);
        self.reset_by(core, id, side);
    }

    /// A connection that nobody holds is forgotten; its events find nothing.
    fn forget(&mut self, id: ConnId) {
        if self.conns.get(&id).is_some_and(|conn| conn.ends.iter().all(|end| end.closed)) {
            self.conns.remove(&id);
        }
    }
}
