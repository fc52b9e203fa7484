//! Entry point for fuzzing: any bytes may stand on a device, and nothing may panic. Where a checksum stands between the bytes and a
//! decoder the decoder is asked without it: a checksum is no defence against whoever writes it himself.

use device::sealed;

use super::buffer::Range;
use super::map::{Map, PAGE_ENTRIES};
use super::recover::check_root;
use super::root::{self, LineNote, Root, Totals};
use super::tag::{Codec, Logical, TAG_BYTES, Tag};
use super::write::{decode_record, encode_record};
use crate::address::Chunk;
use crate::geometry::{Geometry, SECTOR_BYTES};
use crate::nand::{bytes_on_namespace, decode_head, encode_head};

/// Of a device that the structures are read against.
fn geometry(oob_bytes: u32) -> Geometry {
    Geometry { groups: 2, units_per_group: 1, chunks: 9, sectors: 16, write_unit: 4, oob_bytes, open_max: 0 }
}

/// What an opening reads. The first byte chooses: a root, a unit without and with an out-of-band area, a record, a page of the map,
/// the head of a model.
pub fn flash_open(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind % 6 {
        0 => of_root(bytes),
        1 => of_unit(bytes, 0),
        2 => of_unit(bytes, 24),
        3 => {
            let mut sector = vec![0; SECTOR_BYTES];
            let len = bytes.len().min(SECTOR_BYTES);
            sector[..len].copy_from_slice(&bytes[..len]);
            for capacity in [0, 1, 500, u32::MAX] {
                let ends = |range: &Range| range.first.checked_add(range.count).is_some_and(|end| end <= capacity);
                assert!(decode_record(&sector, capacity).iter().all(|range| range.count == 0 || ends(range)));
            }
        }
        5 => of_head(bytes),
        _ => {
            let sectors = geometry(16).sectors_total();
            let mut map = Map::new(PAGE_ENTRIES + 7);
            for page in [0, 1] {
                let is_sound = map.load_page(page, bytes, sectors);
                assert!(!is_sound || map.places().all(|(_, sector)| sector.0 < sectors));
            }
        }
    }
}

/// A root whose seal is made right; one that is taken for sound is within the bounds that an opening goes by.
fn of_root(bytes: &[u8]) {
    let mut page = bytes.to_vec();
    page.resize(bytes.len().next_multiple_of(SECTOR_BYTES).max(SECTOR_BYTES), 0);
    let (magic, format) = (*b"YAGURA-R", 1);
    let len = page.len() as u32;
    page[12..16].copy_from_slice(&len.to_le_bytes());
    sealed::seal(&mut page, magic, format);
    assert_eq!(root::length(&page[..SECTOR_BYTES]), Some(page.len()));
    let Some(root) = Root::decode(&page) else { return };
    assert_eq!(Root::decode(&root.encode()), Some(root.clone()), "a root has one form");
    let geometry = geometry(16);
    if check_root(&root, geometry).is_ok() {
        assert!(root.capacity <= geometry.sectors_total() && root.up_to <= root.limit && root.limit < 1 << 55);
    }
}

/// A head whose seal is made right; what is taken for a geometry has room for all of its sectors.
fn of_head(bytes: &[u8]) {
    let mut page = encode_head(&geometry(0), [0; 16]).to_vec();
    let (from, format) = (24, sealed::format(&page));
    let len = bytes.len().min(SECTOR_BYTES - from);
    page[from..from + len].copy_from_slice(&bytes[..len]);
    let magic = *page.first_chunk().unwrap_or(&[0; 8]);
    sealed::seal(&mut page, magic, format);
    if let Ok(Some((geometry, serial))) = decode_head(&page) {
        let oob_bytes = u128::from(geometry.sectors_total()) * u128::from(geometry.oob_bytes);
        let least = u128::from(geometry.sectors_total()) * SECTOR_BYTES as u128 + oob_bytes;
        assert!(u128::from(bytes_on_namespace(geometry)) >= least);
        assert_eq!(decode_head(&encode_head(&geometry, serial)), Ok(Some((geometry, serial))));
    }
}

/// A unit as it is, and with tags that match.
fn of_unit(bytes: &[u8], oob_bytes: u32) {
    let codec = Codec::new(geometry(oob_bytes), [7; 16]);
    let (mut data, mut oob) = (vec![0; codec.unit as usize * SECTOR_BYTES], vec![0; codec.oob_bytes(codec.unit)]);
    // The tags first: they are what is looked at.
    let tags = if codec.in_band() { &mut data } else { &mut oob };
    let len = bytes.len().min(tags.len());
    tags[..len].copy_from_slice(&bytes[..len]);
    for is_sealed in [false, true] {
        if is_sealed {
            codec.match_tags(&mut data, &mut oob);
        }
        let found = codec.tags(&data, &oob);
        let notes = codec.notes(&found, &data, &oob);
        assert!(notes.missing.iter().all(|missing| missing.0 < codec.payload() && found[missing.0 as usize].is_none()));
    }
}

/// One input for each kind, each as a media manager writes it, named: the corpus to begin with.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let geometry = geometry(16);
    let root = Root {
        number: 77,
        identity: [1; 16],
        serial: [2; 16],
        geometry,
        unit: 4,
        up_to: 12345,
        limit: 99999,
        capacity: 100,
        is_closed: false,
        totals: Totals { host: 1, programmed: 2, moved: 3, padding: 4, unknown: 0 },
        directory: vec![5],
        lines: (0..9).map(|last| LineNote { last, open: (last < 4).then_some(last as u8) }).collect(),
        attributes: device::Attributes::default().with("key", b"value").unwrap_or_default(),
        apart: [vec![Chunk(0), Chunk(9)], vec![Chunk(1)]],
    };
    let sector = vec![3; SECTOR_BYTES];
    let unit = |oob_bytes| {
        let codec = Codec::new(self::geometry(oob_bytes), [7; 16]);
        let tags = [Logical::Data(40), Logical::Page(0), Logical::Record].into_iter().zip(1000..);
        let sectors = tags.map(|(logical, sequence)| (Tag { logical, sequence }, &sector[..]));
        let (data, oob) = codec.build(sectors, 900);
        if codec.in_band() { data[..SECTOR_BYTES].to_vec() } else { oob.to_vec() }
    };
    let ranges =
        [Range { first: 3, count: 9, is_spoilt: false }, Range { first: 400, count: 1 << 20, is_spoilt: true }];
    let record = encode_record(&ranges);
    let page: Vec<u8> = [7, u32::MAX, u32::MAX - 1, 200].iter().flat_map(|entry: &u32| entry.to_le_bytes()).collect();
    // Its out-of-band bytes of a chunk are more than 32 bits count.
    let large = Geometry { groups: 1, chunks: 8, sectors: 1 << 28, oob_bytes: 256, ..geometry };
    let of_kind = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    vec![
        ("root", of_kind(0, &root.encode()[..512])),
        ("unit", of_kind(1, &unit(0)[..4 * TAG_BYTES])),
        ("unit-with-notes", of_kind(2, &unit(24))),
        ("record", of_kind(3, &record[..32])),
        ("page", of_kind(4, &page)),
        ("head", of_kind(5, &encode_head(&large, [255; 16])[24..80])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus in the tree is what this version writes; `YAGURA_WRITE_SEEDS=1` writes it.
    #[test]
    fn seeds_are_in_the_tree() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/flash_open");
        for (name, bytes) in seeds() {
            if std::env::var_os("YAGURA_WRITE_SEEDS").is_some() {
                std::fs::create_dir_all(&folder).expect("made");
                std::fs::write(folder.join(name), &bytes).expect("written");
            }
            let found = std::fs::read(folder.join(name)).unwrap_or_default();
            assert!(found == bytes, "{name} differs; write it anew: YAGURA_WRITE_SEEDS=1");
            flash_open(&bytes);
        }
    }

    #[test]
    fn a_root_that_can_not_be_is_refused() {
        let bytes = &seeds()[0].1[1..];
        let mut page = bytes.to_vec();
        page.resize(SECTOR_BYTES, 0);
        sealed::seal(&mut page, *b"YAGURA-R", 1);
        let sound = Root::decode(&page).expect("a root");
        assert!(check_root(&sound, geometry(16)).is_ok());
        let huge = u64::MAX - 1;
        for bad in [
            Root { capacity: u32::MAX, ..sound.clone() },
            Root { limit: huge, ..sound.clone() },
            Root { up_to: sound.limit + 1, ..sound.clone() },
            Root { number: huge, ..sound.clone() },
            Root { totals: Totals { moved: huge, ..sound.totals }, ..sound.clone() },
            Root { directory: vec![1 << 20], ..sound.clone() },
        ] {
            assert!(check_root(&bad, geometry(16)).is_err(), "{bad:?}");
        }
    }
}
