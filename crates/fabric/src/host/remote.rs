//! [`RemoteNamespace`]: a namespace behind NVMe/TCP that comes back by itself.
//!
//! Invariants:
//! - A command is sent at most once. Whether a command that was under way when the connection ended took effect is not
//!   known here, and sending a write again could undo what others wrote since: the caller, who knows what it means,
//!   decides ([`Error::Disconnected`], [`Error::Aborted`]). While there is no connection commands fail at once
//!   ([`Error::NotConnected`]) and were certainly not sent.
//! - After a reconnect the namespace is the same one (identity, block size, at least the size), or it stays down and says why:
//!   writing pages of one store into another's namespace would destroy both.
//! - A compare-and-write is never split; what is longer than the target's unit is refused.

use std::rc::Rc;
use std::sync::Arc;

use device::{Durability, Error, Lba, Link, Namespace, NamespaceInfo, Zone, ZoneAction, ZonedInfo};
use engine::file::Lifetime;
use engine::sync::{Notified, Notify};
use engine::task::LocalFuture;
use engine::{Buf, View};
use nvme::AnaState;
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace};

use super::admin::read_page;
use super::association::Association;
use super::error::ConnectError;
use super::io::{Change, Io, Swap, check_length, check_range};
use super::joining::Joiner;
use super::options::Options;
use super::session::{Attached, Session, Up};
use super::shape;

/// A namespace that a subsystem lists, by its identifier, or why it can't be used.
type Listed = (u32, Result<RemoteNamespace, ConnectError>);

/// The active namespaces of an association's subsystem.
async fn listed(association: Option<&Association>, options: &Options) -> Result<Vec<u32>, ConnectError> {
    let lost = ConnectError::NoAnswer { step: "list namespaces", ended: "there is no connection" };
    let Some(association) = association else { return Err(lost) };
    let admin = association.admin().ok_or(lost)?;
    shape::active(&admin, options, &association.controller).await
}

/// A namespace of a target. It belongs to the reactor thread that made it.
pub struct RemoteNamespace {
    pub(super) session: Rc<Session>,
    pub(super) attached: Rc<Attached>,
}

impl RemoteNamespace {
    /// Connects; ends with an error if the first attempt fails. Afterwards it reconnects by itself.
    ///
    /// # Errors
    /// The target can't be reached, refuses, or has no such namespace that can be used.
    pub fn connect(options: Options) -> LocalFuture<'static, Result<RemoteNamespace, ConnectError>> {
        Box::pin(async move {
            let nsid = options.nsid;
            let session = Rc::new(Session::connect(options).await?);
            RemoteNamespace::on(session, nsid, Notify::new()).await
        })
    }

    /// The namespace `nsid` of the same subsystem, over the same association.
    ///
    /// # Errors
    /// There is no connection now, or no such namespace that can be used.
    pub fn sibling(&self, nsid: u32) -> LocalFuture<'_, Result<RemoteNamespace, ConnectError>> {
        Box::pin(async move { RemoteNamespace::on(Rc::clone(&self.session), nsid, Notify::new()).await })
    }

    /// All namespaces of `options`' subsystem, whatever identifier these say, over one association; with each that can't be used
    /// why that is. Ascending.
    ///
    /// # Errors
    /// The target can't be reached, refuses, or does not say which there are.
    pub fn connect_all(options: Options) -> LocalFuture<'static, Result<Vec<Listed>, ConnectError>> {
        Box::pin(async move {
            let session = Rc::new(Session::connect(options).await?);
            let inner = Rc::clone(&session.inner);
            let association = inner.association.borrow().clone();
            let mut all = Vec::new();
            for nsid in listed(association.as_deref(), &inner.options).await? {
                match RemoteNamespace::on(Rc::clone(&session), nsid, Notify::new()).await {
                    // Deleted since the list was read.
                    Err(ConnectError::NoNamespace { .. }) => {}
                    found => all.push((nsid, found)),
                }
            }
            Ok(all)
        })
    }

    /// The same with the notice of change that a multipath namespace gives all its paths.
    pub(super) async fn connect_noticed(options: Options, changed: Notify) -> Result<RemoteNamespace, ConnectError> {
        let nsid = options.nsid;
        let session = Rc::new(Session::connect_once(options).await?);
        RemoteNamespace::on(session, nsid, changed).await
    }

    async fn on(session: Rc<Session>, nsid: u32, changed: Notify) -> Result<RemoteNamespace, ConnectError> {
        let inner = Rc::clone(&session.inner);
        let association = inner.association.borrow().clone();
        let lost = ConnectError::NoAnswer { step: "identify namespace", ended: "there is no connection" };
        let association = association.ok_or(lost)?;
        let found = association.find(&inner.options, nsid).await?;
        let attached = Attached::new(&inner.options, nsid, found.info.clone(), changed);
        let attached = inner.attach(attached, Some((&association, &found)))?;
        Ok(RemoteNamespace { session, attached })
    }

    /// A namespace that is known from before, as `expected`. It is down at first and connects in the background; only a
    /// namespace with this identity and block size, and at least this size, is let in.
    pub fn expecting(options: Options, expected: NamespaceInfo) -> RemoteNamespace {
        RemoteNamespace::expecting_noticed(options, expected, Notify::new())
    }

    pub(super) fn expecting_noticed(options: Options, expected: NamespaceInfo, changed: Notify) -> RemoteNamespace {
        let attached = Attached::new(&options, options.nsid, expected, changed);
        RemoteNamespace::waiting(Session::expecting(options), attached)
    }

    fn waiting(session: Session, attached: Attached) -> RemoteNamespace {
        let attached = session.inner.attach(attached, None);
        let attached = attached.expect("invariant: without a finding there is nothing to refuse");
        RemoteNamespace { session: Rc::new(session), attached }
    }

    /// Takes part, from this reactor and with a queue of its own, in the association of the namespace that gave the joiner. It is
    /// down until its queue is connected, and whenever the association is; the two end together.
    pub fn join(joiner: Joiner) -> RemoteNamespace {
        let attached = Attached::new(&joiner.options, joiner.nsid, joiner.info, Notify::new());
        attached.zoned.set(joiner.zoned);
        RemoteNamespace::waiting(Session::join(joiner.options, joiner.shared), attached)
    }

    /// What another reactor needs to join; see [`Options::queues_elsewhere`].
    pub fn joiner(&self) -> Joiner {
        let inner = &self.session.inner;
        Joiner {
            shared: Arc::clone(&inner.shared),
            options: inner.options.clone(),
            nsid: self.attached.nsid,
            info: self.attached.info.borrow().clone(),
            zoned: self.attached.zoned.get(),
        }
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.attached.is_up()
    }

    /// The namespace's identifier.
    pub fn nsid(&self) -> u32 {
        self.attached.nsid
    }

    /// The target's address.
    pub fn address(&self) -> std::net::SocketAddr {
        self.session.inner.options.address
    }

    /// Counts the connections that were made: a change means that what was under way before was lost.
    pub fn epoch(&self) -> u64 {
        self.attached.epoch()
    }

    /// I/O queues of the association on this reactor; 0: there is no connection.
    pub fn queues(&self) -> usize {
        self.attached.up().map_or(0, |up| up.association.queues())
    }

    /// Identifiers of the subsystem's namespaces, ascending.
    ///
    /// # Errors
    /// There is no connection now, or the target does not answer.
    pub fn namespaces(&self) -> LocalFuture<'_, Result<Vec<u32>, ConnectError>> {
        Box::pin(async move {
            let up = self.attached.up();
            listed(up.as_ref().map(|up| &*up.association), &self.session.inner.options).await
        })
    }

    /// The controller's Identify page; `None`: there is no connection.
    pub fn controller(&self) -> Option<IdentifyController> {
        self.attached.up().map(|up| up.association.controller.page)
    }

    /// The namespace's Identify page, asked for anew.
    ///
    /// # Errors
    /// There is no connection now, or the target refuses.
    pub fn identify(&self) -> LocalFuture<'_, Result<IdentifyNamespace, ConnectError>> {
        Box::pin(async move {
            let none = ConnectError::NoAnswer { step: "identify namespace", ended: "there is no connection" };
            let Some(up) = self.attached.up() else { return Err(none) };
            let admin = up.association.admin().ok_or(none)?;
            Ok(read_page(&admin.identify(Cns::NAMESPACE, self.attached.nsid).await?))
        })
    }

    /// How good this controller is for the namespace; `None`: there is no connection.
    pub fn ana_state(&self) -> Option<AnaState> {
        self.attached.up().map(|up| up.association.ana_state(up.limits.ana_group))
    }

    /// Ends when the connection has come or gone. Look at [`RemoteNamespace::is_connected`] after making this and before
    /// awaiting it.
    pub fn changed(&self) -> Notified {
        self.attached.changed.notified()
    }

    /// Waits until there is a connection.
    pub async fn connected(&self) {
        loop {
            let changed = self.changed();
            if self.is_connected() {
                return;
            }
            changed.await;
        }
    }

    /// Why it is down, or why it was last.
    pub fn last_error(&self) -> Option<String> {
        self.attached.last_error()
    }

    /// The target in words, as errors name it.
    pub fn name(&self) -> &str {
        &self.attached.name
    }

    /// Tells the target that the host is leaving and disconnects for good: also the namespaces that share the association.
    /// Commands under way are lost.
    pub async fn disconnect(self) {
        let association = self.session.inner.association.borrow_mut().take();
        self.attached.fall("disconnected");
        if let Some(association) = association {
            association.leave().await;
        }
    }

    pub(super) fn up(&self) -> Result<Up, Error> {
        self.attached.up().ok_or_else(|| Error::NotConnected(self.attached.name.clone()))
    }

    async fn change(&self, change: Change) -> Result<(), Error> {
        let up = self.up()?;
        Ok(Io { attached: &self.attached, up: &up }.change(&change).await?)
    }
}

impl Namespace for RemoteNamespace {
    // Of a remote medium that has failed each write learns by its error: what serves it on goes on saying that it takes writes.
    device::namespace_without!(writability, used_blocks, attributes);

    fn link(&self) -> Link {
        Link { is_up: self.is_connected(), epoch: self.epoch() }
    }

    fn info(&self) -> NamespaceInfo {
        self.attached.info.borrow().clone()
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let most = self.attached.info.borrow().transfer_blocks_max;
        let checked = check_length(&self.attached, lba, buf.len(), most);
        let up = match checked.and_then(|_| self.up()) {
            Ok(up) => up,
            Err(error) => return (Err(error), buf),
        };
        let (result, buf) = Io { attached: &self.attached, up: &up }.read(lba, buf).await;
        (result.map_err(Error::from), buf)
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        let most = self.attached.info.borrow().transfer_blocks_max;
        check_length(&self.attached, lba, data.len(), most)?;
        self.change(Change::Write { lba, data, durability }).await
    }

    async fn flush(&self) -> Result<(), Error> {
        let up = self.up()?;
        Ok(Io { attached: &self.attached, up: &up }.flush().await?)
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        let most = self.attached.info.borrow().transfer_blocks_max;
        check_length(&self.attached, lba, expected.len(), most)?;
        let up = self.up()?;
        Ok(Io { attached: &self.attached, up: &up }.compare(lba, expected).await?)
    }

    async fn compare_and_write(&self, lba: Lba, expected: View, new: View, how: Durability) -> Result<(), Error> {
        let up = self.up()?;
        let swap = Swap { lba, expected, new, durability: how };
        Ok(Io { attached: &self.attached, up: &up }.swap(&swap).await?)
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        check_range(&self.attached, lba, blocks)?;
        self.change(Change::WriteZeroes { lba, blocks, durability }).await
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        check_range(&self.attached, lba, blocks)?;
        self.change(Change::Deallocate { lba, blocks }).await
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        check_range(&self.attached, lba, blocks)?;
        let up = self.up()?;
        Ok(Io { attached: &self.attached, up: &up }.verify(lba, blocks).await?)
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        check_range(&self.attached, lba, blocks)?;
        self.change(Change::WriteUncorrectable { lba, blocks }).await
    }

    async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
        self.place_by(lifetime).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "the target does not place data");
            false
        })
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        self.attached.zoned.get()
    }

    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        let up = self.up()?;
        Ok(Io { attached: &self.attached, up: &up }.zones(from, max).await?)
    }

    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error> {
        self.change(Change::Zone { zone, action }).await
    }

    async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, Error> {
        let up = self.up()?;
        Ok(Io { attached: &self.attached, up: &up }.append(zone, data, durability).await?)
    }
}
