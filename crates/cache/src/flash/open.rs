//! A log is begun, or found again: which of its items still count is told by superblock, journal and summaries, and no
//! item is read.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use device::{Durability, Error, Lba};
use engine::file::Lifetime;
use engine::sync::mailbox;
use engine::task::LocalFuture;
use engine::{Buf, Mapped, task};

use super::FlashLog;
use super::counters::Counters;
use super::journal::Journal;
use super::medium::Medium;
use super::options::{Geometry, Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use super::place::PAGE_BYTES;
use super::read::read_pages;
use super::recover::{Restore, recover};
use super::state::State;
use super::superblock::{FORMAT, Found, Superblock};

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such segments.
    #[error("segments of {0} bytes: must be a power of two from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}")]
    SegmentSize(usize),
    /// Pages cannot be written.
    #[error(
        "the namespace has blocks of {block_size} bytes and transfers of {transfer} blocks: \
         the flash log needs blocks of 512 to 4096 bytes, and transfers of {PAGE_BYTES}"
    )]
    BlockSize {
        /// Bytes of a block.
        block_size: u32,
        /// Blocks of the longest transfer.
        transfer: u32,
    },
    /// Too few segments.
    #[error(
        "the namespace has {bytes} bytes: a flash log in segments of {segment_bytes} needs at least {needed}; \
         use a larger one, or shorter segments"
    )]
    TooSmall {
        /// Bytes there are.
        bytes: u64,
        /// Bytes there must be.
        needed: u64,
        /// Bytes of a segment.
        segment_bytes: usize,
    },
    /// It holds something else.
    #[error(
        "the namespace holds something that is no flash log (it begins with {0:02x?}): \
         use another one, or have it overwritten if that can be lost"
    )]
    Foreign([u8; 8]),
    /// A later version's.
    #[error("the flash log has format {found}, this version reads {FORMAT}: use a newer version")]
    Newer {
        /// The format found.
        found: u32,
    },
    /// The journal is too short.
    #[error("the journal has {found} words, this log needs {needed}: map as many as Options::journal_words says")]
    Journal {
        /// Words there are.
        found: usize,
        /// Words there must be.
        needed: usize,
    },
    /// The device has failed.
    #[error("the flash log's namespace has failed: {0}")]
    Device(#[from] Error),
    /// The journal could not be made stable.
    #[error("the flash log's journal could not be written: {0}")]
    Mapped(std::io::Error),
}

/// Why a log began with nothing in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fresh {
    /// The namespace was blank, or was to be overwritten.
    Formatted,
    /// Its superblock was damaged.
    Damaged,
    /// An earlier version's, which this one does not read.
    Older,
    /// It was made for other sizes.
    Resized,
    /// The journal is not that of this log: which items still count is not known.
    NoJournal,
    /// The machine was restarted, and the log was not closed before: as above.
    PowerLost,
}

impl std::fmt::Display for Fresh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fresh::Formatted => "begun anew",
            Fresh::Damaged => "begun anew, its superblock was damaged",
            Fresh::Older => "begun anew, an earlier version made it",
            Fresh::Resized => "begun anew, it was made for other sizes",
            Fresh::NoJournal => "begun anew, the journal is not its own",
            Fresh::PowerLost => "begun anew, the machine was restarted before it was closed",
        })
    }
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovery {
    /// Why nothing was, if so.
    pub fresh: Option<Fresh>,
    /// Items that were told to the caller.
    pub items: u64,
    /// Segments they are in.
    pub segments: u32,
    /// Segments whose summary is missing: they were being written when the process ended, or are damaged.
    pub segments_lost: u32,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Items with a smaller cas were flushed, also where they are read from the log.
    pub cas_floor: u64,
    /// No cas above this one was given.
    pub cas_reserved: u64,
    /// When all there is will be flushed, in seconds since 1970; 0: never.
    pub flush_at: u64,
}

impl FlashLog {
    /// Opens the log on `namespace`, or begins one; `restore` is told of what is there.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(
        namespace: impl Into<Medium>,
        journal: Arc<Mapped>,
        options: &Options,
        mut restore: impl Restore,
    ) -> Result<(FlashLog, Recovery), OpenError> {
        FlashLog::open_on(namespace.into(), journal, options, &mut restore).await
    }

    fn open_on<'a>(
        namespace: Medium,
        journal: Arc<Mapped>,
        options: &'a Options,
        restore: &'a mut dyn Restore,
    ) -> LocalFuture<'a, Result<(FlashLog, Recovery), OpenError>> {
        Box::pin(open(namespace, journal, options, restore))
    }
}

async fn open(
    namespace: Medium,
    journal: Arc<Mapped>,
    options: &Options,
    restore: &mut dyn Restore,
) -> Result<(FlashLog, Recovery), OpenError> {
    let geometry = Geometry::new(&namespace.info(), options)?;
    let needed = geometry.shape().words();
    if journal.words().len() < needed {
        return Err(OpenError::Journal { found: journal.words().len(), needed });
    }
    let journal = Journal::new(journal, geometry.shape());
    let page = read_pages(&namespace, &geometry, 0, 1).await?;
    let page: &[u8; PAGE_BYTES] = page.first_chunk().ok_or_else(|| Error::ReadFault("a short page".into()))?;
    let mut recovery = Recovery { bytes_read: PAGE_BYTES as u64, ..Recovery::default() };
    let known = match Superblock::find(page) {
        Found::Newer(found) => return Err(OpenError::Newer { found }),
        Found::Foreign(bytes) if !options.overwrite => return Err(OpenError::Foreign(bytes)),
        Found::Blank | Found::Foreign(_) => Err(Fresh::Formatted),
        Found::Damaged => Err(Fresh::Damaged),
        Found::Older(format) => {
            tracing::info!(format, "the flash log was made by an earlier version");
            Err(Fresh::Older)
        }
        Found::Superblock(superblock) => usable(&superblock, &geometry, &journal, options).map(|()| superblock),
    };
    // All of it goes the same way round, segment by segment: apart from others the medium needs not move it.
    let apart = namespace.hint_lifetime(Lifetime::Medium).await;
    tracing::debug!(apart, "flash: what is written is kept apart by the medium, if it can");
    let secret = match &known {
        Ok(superblock) => superblock.secret,
        Err(fresh) => {
            tracing::info!(?fresh, "the flash log begins with nothing in it");
            recovery.fresh = Some(*fresh);
            begin(&namespace, &geometry, &journal, options).await?;
            options.secret
        }
    };
    journal.open(options.boot).map_err(OpenError::Mapped)?;
    let mut state = State::default();
    if known.is_ok() {
        flush_when_due(&journal);
        recover(&namespace, &geometry, &journal, &mut recovery, &mut state, restore).await;
    }
    recovery.cas_floor = journal.cas_floor();
    recovery.cas_reserved = journal.cas_reserved();
    recovery.flush_at = journal.flush_at();
    Ok((assemble(namespace, journal, geometry, options, secret, state), recovery))
}

/// Whether what is in the log can be known.
fn usable(superblock: &Superblock, geometry: &Geometry, journal: &Journal, options: &Options) -> Result<(), Fresh> {
    let pages = u64::from(geometry.segments) * u64::from(geometry.segment_pages);
    if (superblock.segment_pages, superblock.pages) != (geometry.segment_pages, pages) {
        return Err(Fresh::Resized);
    }
    if !journal.is_of(superblock.incarnation) {
        return Err(Fresh::NoJournal);
    }
    if journal.is_whole(options.boot) { Ok(()) } else { Err(Fresh::PowerLost) }
}

/// Begins a log with nothing in it. The superblock comes first: a journal that does not belong to it is not believed.
async fn begin(namespace: &Medium, geometry: &Geometry, journal: &Journal, options: &Options) -> Result<(), OpenError> {
    let superblock = Superblock {
        segment_pages: geometry.segment_pages,
        secret: options.secret,
        incarnation: task::random_u64(),
        pages: u64::from(geometry.segments) * u64::from(geometry.segment_pages),
        created: engine::time::unix_time().as_secs(),
    };
    let page = Buf::copy_from(&superblock.encode()).freeze();
    namespace.write(Lba(0), page, Durability::Stable).await?;
    // No page that an earlier log has left here is of a life of this one.
    let life = task::random_u64() >> 2;
    journal.reset(superblock.incarnation, life);
    Ok(())
}

/// A flush that came due while nothing ran.
fn flush_when_due(journal: &Journal) {
    let at = journal.flush_at();
    if at != 0 && engine::time::unix_time().as_secs() >= at {
        journal.flush(journal.cas_reserved().saturating_add(1));
    }
}

fn assemble(
    namespace: Medium,
    journal: Journal,
    geometry: Geometry,
    options: &Options,
    secret: [u64; 2],
    mut state: State,
) -> FlashLog {
    let mut lives: Box<[AtomicU64]> =
        std::iter::repeat_with(AtomicU64::default).take(geometry.segments as usize).collect();
    for &segment in &state.sealed {
        lives[segment as usize] = AtomicU64::new(journal.life(segment).unwrap_or(0));
    }
    let buffered = std::iter::repeat_with(AtomicBool::default).take(geometry.segments as usize).collect();
    let mut is_used = vec![false; geometry.segments as usize];
    state.sealed.iter().for_each(|&segment| is_used[segment as usize] = true);
    state.free = (1..geometry.segments).filter(|&segment| !is_used[segment as usize]).collect();
    let (writer, writer_woken) = mailbox(1);
    FlashLog {
        namespace,
        journal,
        geometry,
        origin: options.origin,
        secret,
        state: Mutex::new(state),
        lives,
        buffered,
        trouble: AtomicU32::new(0),
        failed_writes: AtomicU64::new(0),
        is_closed: AtomicBool::new(false),
        is_journal_closed: AtomicBool::new(false),
        closing: Mutex::default(),
        counters: Counters::default(),
        writer,
        writer_woken: Mutex::new(Some(writer_woken)),
    }
}
