//! Sizes of a log, and whether a namespace can hold it.

use device::NamespaceInfo;

use super::item::Origin;
use super::journal::{Boot, Shape};
use super::open::OpenError;
use super::place::{PAGE_BYTES, SEGMENT_PAGES_MAX};

/// Bytes of the longest segment. Derived: the pages that a summary can tell apart.
pub const SEGMENT_BYTES_MAX: usize = SEGMENT_PAGES_MAX as usize * PAGE_BYTES;
/// Bytes of the shortest segment. Chosen: for tests, and for namespaces of a few megabytes.
pub const SEGMENT_BYTES_MIN: usize = 16 * PAGE_BYTES;
/// Segments that there must be. Chosen: what is kept while one is collected has room, and the collected one is an
/// eighth at most.
pub const SEGMENTS_MIN: u32 = 8;
/// Segments that there should be. Guessed: what is collected at a time is some percent of all.
pub const SEGMENTS_WANTED: u64 = 64;
/// Segments that are buffered at least: one that is written and one that is filled.
pub const BUFFERED_SEGMENTS_MIN: usize = 2;
/// Pages of one write. Chosen: what a pooled buffer holds.
const CHUNK_PAGES_MAX: u32 = 256;

const _: () = assert!(CHUNK_PAGES_MAX as usize * PAGE_BYTES <= engine::buf::BUF_BYTES_MAX);

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a segment: a power of two from [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`]. Counts when the log
    /// begins.
    pub segment_bytes: usize,
    /// Bytes of memory for what is on its way, [`BUFFERED_SEGMENTS_MIN`] segments at least. A summary's length more may
    /// be used while it is written.
    pub buffer_bytes: usize,
    /// Where the server's clock began.
    pub origin: Origin,
    /// This start of the machine.
    pub boot: Boot,
    /// The secret of hashes for a log that begins; random. One that is there keeps its own.
    pub secret: [u64; 2],
    /// Take a namespace that holds something else, which is lost.
    pub overwrite: bool,
}

impl Options {
    /// The usual sizes: segments of 4 MiB, and memory for four.
    pub fn new(origin: Origin, secret: [u64; 2]) -> Options {
        let boot = Boot::current();
        Options { segment_bytes: 4 << 20, buffer_bytes: 16 << 20, origin, boot, secret, overwrite: false }
    }

    /// The length of segments for a namespace of so many bytes: 4 MiB, or shorter ones where there would be less than
    /// [`SEGMENTS_WANTED`].
    pub fn segment_bytes_for(bytes: u64) -> usize {
        let most = (bytes / SEGMENTS_WANTED).max(1);
        (1 << most.ilog2().min(63)).clamp(SEGMENT_BYTES_MIN as u64, 4 << 20) as usize
    }

    /// Words that the journal of a log on such a namespace takes, to be mapped ([`engine::Mapped::open`]).
    ///
    /// # Errors
    /// The namespace can hold no log of these sizes.
    pub fn journal_words(&self, info: &NamespaceInfo) -> Result<usize, OpenError> {
        Ok(Geometry::new(info, self)?.shape().words())
    }

    /// Bytes of memory that a log on such a namespace takes at most: what is on its way, one summary that is written,
    /// the journal's mapped pages, and what is known of each segment.
    ///
    /// # Errors
    /// As [`Options::journal_words`].
    pub fn memory_bytes(&self, info: &NamespaceInfo) -> Result<usize, OpenError> {
        let geometry = Geometry::new(info, self)?;
        let per_segment = 2 * size_of::<u64>();
        let buffers = geometry.buffered_segments_max * self.segment_bytes;
        let summary = self.segment_bytes / 2;
        Ok(buffers + summary + geometry.shape().words() * size_of::<u64>() + geometry.segments as usize * per_segment)
    }
}

/// Sizes that fit together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub(crate) segment_pages: u32,
    /// With the first, whose first page is the superblock's and whose others are not used.
    pub(crate) segments: u32,
    /// Pages of one write; divides `segment_pages`.
    pub(crate) chunk_pages: u32,
    pub(crate) blocks_per_page: u64,
    pub(crate) buffered_segments_max: usize,
}

impl Geometry {
    pub(crate) fn new(info: &NamespaceInfo, options: &Options) -> Result<Geometry, OpenError> {
        let bytes = options.segment_bytes;
        if !bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
            return Err(OpenError::SegmentSize(bytes));
        }
        let transfer_pages = info.transfer_blocks_max as usize * info.block_size as usize / PAGE_BYTES;
        if info.block_size as usize > PAGE_BYTES || transfer_pages == 0 {
            return Err(OpenError::BlockSize { block_size: info.block_size, transfer: info.transfer_blocks_max });
        }
        let segment_pages = (bytes / PAGE_BYTES) as u32;
        let transfer_pages = transfer_pages.min(CHUNK_PAGES_MAX as usize) as u32;
        let segments = (info.bytes() / bytes as u64).min(u64::from(u32::MAX / segment_pages)) as u32;
        if segments <= SEGMENTS_MIN {
            let needed = (u64::from(SEGMENTS_MIN) + 1) * bytes as u64;
            return Err(OpenError::TooSmall { bytes: info.bytes(), needed, segment_bytes: bytes });
        }
        Ok(Geometry {
            segment_pages,
            segments,
            chunk_pages: (1 << transfer_pages.ilog2()).min(segment_pages),
            blocks_per_page: PAGE_BYTES as u64 / u64::from(info.block_size),
            buffered_segments_max: (options.buffer_bytes / bytes).max(BUFFERED_SEGMENTS_MIN),
        })
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape { segments: self.segments, segment_pages: self.segment_pages }
    }

    pub(crate) fn segment_bytes(&self) -> usize {
        self.segment_pages as usize * PAGE_BYTES
    }

    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_pages as usize * PAGE_BYTES
    }

    /// Number of the first page of a segment.
    pub(crate) fn first_page(&self, segment: u32) -> u32 {
        segment * self.segment_pages
    }
}

#[cfg(test)]
mod tests {
    use device::{Memory, Namespace};

    use super::*;

    fn geometry(bytes: u64, block_size: u32, segment_bytes: usize) -> Result<Geometry, OpenError> {
        let memory = Memory::new(bytes, block_size, [1; 16]).expect("a namespace");
        let options = Options { segment_bytes, ..Options::new(Origin(0), [1, 2]) };
        Geometry::new(&memory.info(), &options)
    }

    #[test]
    fn what_holds_no_log_is_refused_with_what_to_do() {
        let text = |result: Result<Geometry, OpenError>| result.expect_err("refused").to_string();
        assert!(text(geometry(64 << 20, 8192, 1 << 20)).contains("blocks of 512 to 4096"));
        assert!(text(geometry(64 << 20, 4096, 3 << 20)).contains("power of two"));
        assert!(text(geometry(32 << 20, 4096, 4 << 20)).contains("at least 37748736"));
        assert!(geometry(36 << 20, 512, 4 << 20).is_ok());
    }

    #[test]
    fn segments_are_as_long_as_leaves_enough_of_them() {
        let cases =
            [(0, 64 << 10), (1 << 20, 64 << 10), (16 << 20, 256 << 10), (300 << 20, 4 << 20), (1 << 50, 4 << 20)];
        for (bytes, expected) in cases {
            assert_eq!(Options::segment_bytes_for(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn chunks_divide_segments() {
        let geometry = geometry(64 << 20, 512, 64 << 10).expect("fits");
        assert_eq!((geometry.segments, geometry.chunk_pages, geometry.blocks_per_page), (1024, 16, 8));
    }
}
