//! Data members as a client has them: which they are, whether they can be reached, and how fast they answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, ErasedMethods, Lba};
use engine::task::LocalFuture;
use engine::time::{self, Instant};
use engine::{Buf, View};

use super::balance::Pace;
use super::chunk::Region;
use super::key::FsId;
use super::label::{LABEL_BYTES, Label, LabelError};
use super::shape::{ROW_BYTES, Shape};
use super::stripe::SumSeed;

/// A member that failed is not asked to take anything new for so long, where others do. Chosen: a connection that was lost is up
/// again by then, or is known not to be.
const SHUNNED: Duration = Duration::from_secs(5);

/// What all clients of a file system have to agree on; from its root record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The file system.
    pub fs: FsId,
    /// Columns of a stripe.
    pub shape: Shape,
    /// Bytes of a region: a power of two.
    pub region_bytes: u32,
    /// Of checksums.
    pub seed: SumSeed,
}

impl Layout {
    /// Rows of a region.
    pub fn region_rows(&self) -> u32 {
        self.region_bytes / ROW_BYTES as u32
    }

    /// The label of a member.
    pub fn label(&self, index: u16, bytes: u64) -> Label {
        Label { fs: self.fs, index, region_bytes: self.region_bytes, bytes }
    }
}

/// What the root record says of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberSpec {
    /// Its failure domain.
    pub domain: String,
    /// Its size.
    pub bytes: u64,
    /// It gets no new chunks: it is going, or gone.
    pub is_out: bool,
    /// It is said to be lost: nobody hopes for its columns.
    pub is_lost: bool,
}

/// A member.
pub struct Member {
    index: u16,
    spec: RefCell<MemberSpec>,
    region_bytes: u64,
    namespace: RefCell<Option<Rc<dyn ErasedMethods>>>,
    /// The connection over which its label was read: what answers over another one may be something else.
    epoch: Cell<u64>,
    shunned_until: Cell<Instant>,
    pace: Rc<Pace>,
}

impl Member {
    /// Its number in the file system.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// What the root record says.
    pub fn spec(&self) -> MemberSpec {
        self.spec.borrow().clone()
    }

    /// Whether it gets no new chunks.
    pub fn is_out(&self) -> bool {
        self.spec.borrow().is_out
    }

    /// Regions that it has room for.
    pub fn regions(&self) -> u32 {
        let bytes = self.spec.borrow().bytes.saturating_sub(LABEL_BYTES);
        (bytes / self.region_bytes).try_into().unwrap_or(u32::MAX)
    }

    /// What others have under way there, as they say.
    pub fn set_load(&self, load: Duration) {
        self.pace.set_load(load);
    }

    /// Whether it has been reached, and is to be.
    pub fn is_connected(&self) -> bool {
        self.namespace.borrow().is_some()
    }

    /// Whether something can be asked of it now.
    pub fn is_reachable(&self) -> bool {
        self.namespace.borrow().as_ref().is_some_and(|namespace| {
            let link = namespace.link();
            link.is_up && link.epoch == self.epoch.get()
        })
    }

    /// Whether it is connected anew: nothing is asked of it until its label was read again ([`Members::recheck`]).
    pub fn is_strange(&self) -> bool {
        self.namespace.borrow().as_ref().is_some_and(|namespace| {
            let link = namespace.link();
            link.is_up && link.epoch != self.epoch.get()
        })
    }

    /// Whether it should get what is new: it is reachable, and has not failed just now.
    pub(crate) fn is_well(&self) -> bool {
        self.is_reachable() && time::now() >= self.shunned_until.get()
    }

    /// It has failed.
    pub(crate) fn shun(&self) {
        self.shunned_until.set(time::now() + SHUNNED);
    }

    pub(crate) fn pace(&self) -> &Rc<Pace> {
        &self.pace
    }

    fn namespace(&self) -> Result<Rc<dyn ErasedMethods>, device::Error> {
        let name = || device::Error::NotConnected(format!("member {}", self.index));
        let namespace = self.namespace.borrow().clone().ok_or_else(name)?;
        if namespace.link().epoch == self.epoch.get() { Ok(namespace) } else { Err(name()) }
    }

    /// Where a byte of a region is.
    fn place(&self, region: u32, offset: u64) -> u64 {
        LABEL_BYTES + u64::from(region) * self.region_bytes + offset
    }

    /// Reads whole rows of a region.
    pub(crate) async fn read(&self, region: u32, offset: u64, length: usize) -> Result<Buf, device::Error> {
        let namespace = self.namespace()?;
        let _busy = self.pace.begin(length as u64, true);
        let info = namespace.info();
        let (block, at) = (u64::from(info.block_size), self.place(region, offset));
        let most = info.transfer_blocks_max as usize * info.block_size as usize;
        if length <= most {
            let (result, buf) = namespace.read(Lba(at / block), Buf::with_len(length)).await;
            return result.map(|()| buf);
        }
        let mut whole = Buf::with_capacity(length);
        while whole.len() < length {
            let part = Buf::with_len(most.min(length - whole.len()));
            let (result, part) = namespace.read(Lba((at + whole.len() as u64) / block), part).await;
            result?;
            whole.extend_from_slice(&part);
        }
        Ok(whole)
    }

    /// Writes whole rows of a region, stably.
    pub(crate) async fn write(&self, region: u32, offset: u64, data: View) -> Result<(), device::Error> {
        let namespace = self.namespace()?;
        let _busy = self.pace.begin(data.len() as u64, false);
        let info = namespace.info();
        let (block, at) = (u64::from(info.block_size), self.place(region, offset));
        let most = info.transfer_blocks_max as usize * info.block_size as usize;
        let mut from = 0;
        while from < data.len() {
            let part = data.slice(from..data.len().min(from + most));
            let length = part.len();
            namespace.write(Lba((at + from as u64) / block), part, Durability::Stable).await?;
            from += length;
        }
        Ok(())
    }
}

/// Has the root record read again, and members that it names anew reached.
pub type Learn = Rc<dyn Fn() -> LocalFuture<'static, ()>>;

/// All members of a file system, by index. They come and go.
pub struct Members {
    layout: Layout,
    members: RefCell<Vec<Rc<Member>>>,
    learn: RefCell<Option<Learn>>,
}

impl Members {
    /// The members that the root record says; none can be reached yet.
    pub fn new(layout: Layout, specs: Vec<MemberSpec>) -> Rc<Members> {
        let members = Rc::new(Members { layout, members: RefCell::default(), learn: RefCell::default() });
        members.update(specs);
        members
    }

    /// What clients agree on.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// From now on this is asked where a chunk lies on a member that is not known.
    pub fn set_learn(&self, learn: Learn) {
        *self.learn.borrow_mut() = Some(learn);
    }

    /// A member is met that is not known.
    pub(crate) async fn learn(&self) {
        let learn = self.learn.borrow().clone();
        if let Some(learn) = learn {
            learn().await;
        }
    }

    /// The root record has changed: members have joined, go, or have grown.
    pub fn update(&self, specs: Vec<MemberSpec>) {
        let mut members = self.members.borrow_mut();
        for (index, spec) in specs.into_iter().enumerate() {
            if let Some(member) = members.get(index) {
                *member.spec.borrow_mut() = spec;
                continue;
            }
            members.push(Rc::new(Member {
                index: index as u16,
                spec: RefCell::new(spec),
                region_bytes: self.layout.region_bytes.into(),
                namespace: RefCell::default(),
                epoch: Cell::default(),
                shunned_until: Cell::default(),
                pace: Pace::new(),
            }));
        }
    }

    /// A member can be reached by this namespace, whose label was checked; `None`: not any more.
    pub fn connect(&self, index: u16, namespace: Option<Rc<dyn ErasedMethods>>) {
        if let Some(member) = self.get(index) {
            member.epoch.set(namespace.as_ref().map_or(0, |namespace| namespace.link().epoch));
            *member.namespace.borrow_mut() = namespace;
            member.shunned_until.set(Instant::default());
        }
    }

    /// Reads the label of a member that is connected anew: it is that one as before, or can't be reached any more.
    ///
    /// # Errors
    /// It is another one; it does not answer, and is to be asked again.
    pub fn recheck(&self, index: u16) -> LocalFuture<'_, Result<(), LabelError>> {
        Box::pin(async move {
            let Some(member) = self.get(index) else { return Ok(()) };
            let Some(namespace) = member.namespace.borrow().clone() else { return Ok(()) };
            let epoch = namespace.link().epoch;
            let checked = self.layout.label(index, member.spec().bytes).check(&*namespace).await;
            let is_current = member.namespace.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, &namespace));
            match checked {
                Ok(_) if is_current => member.epoch.set(epoch),
                Err(error) if is_current && !matches!(error, LabelError::Device(_)) => {
                    *member.namespace.borrow_mut() = None;
                    return Err(error);
                }
                checked => return checked.map(drop),
            }
            Ok(())
        })
    }

    /// A member, if there is one.
    pub fn get(&self, index: u16) -> Option<Rc<Member>> {
        self.members.borrow().get(usize::from(index)).cloned()
    }

    /// Columns that lie on members that get nothing new, as bits.
    pub(crate) fn out_of(&self, columns: &[Region]) -> u32 {
        self.columns_where(columns, Member::is_out)
    }

    /// Columns that lie on members that are said to be lost, likewise.
    pub(crate) fn lost_of(&self, columns: &[Region]) -> u32 {
        self.columns_where(columns, |member| member.spec.borrow().is_lost)
    }

    /// Columns that lie on members that can be reached, likewise.
    pub(crate) fn reachable_of(&self, columns: &[Region]) -> u32 {
        self.columns_where(columns, Member::is_reachable)
    }

    fn columns_where(&self, columns: &[Region], holds: impl Fn(&Member) -> bool) -> u32 {
        let holds = |region: &Region| self.get(region.member).is_some_and(|member| holds(&member));
        (0..).zip(columns).filter(|(_, region)| holds(region)).fold(0, |all, (column, _): (u32, _)| all | 1 << column)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Rc<Member>> {
        self.members.borrow().clone()
    }

    /// Nanoseconds until a column of so many bytes could be there; for ever where it can't be reached.
    pub(crate) fn finish_nanos(&self, region: Region, bytes: usize, now: Instant) -> u64 {
        let member = self.get(region.member).filter(|member| member.is_reachable());
        member.map_or(u64::MAX, |member| member.pace.finish_nanos(bytes as u64, now))
    }
}
