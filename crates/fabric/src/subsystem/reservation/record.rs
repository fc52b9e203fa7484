//! The record of a namespace's reservations that survives power loss, kept as an attribute of the namespace.
//!
//! ```text
//!   0  "YRSV"         | 4  version 2 | 5  RTYPE, 0: none held | 6  registrants (u16) | 8  generation (u32) | 12  zeroes
//!  16  holder's HOSTID (zeroes: none) | 32  start of the SHA-256 of its name (7 bytes) | 39  zero
//!  40  registrants, each: HOSTID (16 bytes), RKEY (u64), start of the SHA-256 of its name (7 bytes)
//! ```
//! Words are little-endian. Where nothing is to survive (PTPL is clear) there is no record. Whoever keeps it (the sidecar of a
//! file) protects it by a checksum and replaces it as a whole; so a record that makes no sense is refused, not repaired. Version 1
//! did not say whose a registration was: any host that gave the same HOSTID had it.

use device::ATTRIBUTE_BYTES_MAX;
use nvme::reservation::ReservationType;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::state::{Held, HostId, NameTag, REGISTRANTS_MAX, Registrant, State};

const MAGIC: [u8; 4] = *b"YRSV";
const VERSION: u8 = 2;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: u8,
    rtype: u8,
    registrants: nvme::U16,
    generation: nvme::U32,
    reserved: [u8; 4],
    holder: [u8; 16],
    holder_name: NameTag,
    zero: u8,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    host: [u8; 16],
    key: nvme::U64,
    name: NameTag,
}

const _: () = assert!(size_of::<Head>() == 40 && size_of::<Entry>() == 31);
const _: () = assert!(size_of::<Head>() + REGISTRANTS_MAX * size_of::<Entry>() <= ATTRIBUTE_BYTES_MAX);

/// The record of a state; empty where nothing is to survive.
pub(super) fn encode(state: &State) -> Vec<u8> {
    if !state.persist {
        return Vec::new();
    }
    let holder = state.held.map_or(HostId::default(), |held| held.holder);
    let head = Head {
        magic: MAGIC,
        version: VERSION,
        rtype: state.held.map_or(0, |held| held.rtype.code()),
        registrants: (state.registrants.len() as u16).into(),
        generation: state.generation.into(),
        reserved: [0; 4],
        holder: holder.id,
        holder_name: holder.name,
        zero: 0,
    };
    let mut record = head.as_bytes().to_vec();
    for registrant in &state.registrants {
        let HostId { id, name } = registrant.host;
        record.extend_from_slice(Entry { host: id, key: registrant.key.into(), name }.as_bytes());
    }
    record
}

/// The state of a record, or why there is none.
pub(super) fn decode(record: &[u8]) -> Result<State, String> {
    if record.is_empty() {
        return Ok(State::default());
    }
    let (head, rest) = Head::read_from_prefix(record).map_err(|_| format!("{} bytes are no record", record.len()))?;
    if head.magic == MAGIC && head.version == 1 {
        return Err(
            "a development version has kept it, without the names of the registrants: let them clear it there".into()
        );
    }
    if head.magic != MAGIC || head.version != VERSION {
        return Err(format!("magic {:02x?} version {} are not those of a record", head.magic, head.version));
    }
    let count = usize::from(head.registrants.get());
    let (entries, more) = rest.as_chunks::<{ size_of::<Entry>() }>();
    if count > REGISTRANTS_MAX || entries.len() != count || !more.is_empty() {
        return Err(format!("{count} registrants are not what {} bytes hold", record.len()));
    }
    let registrant = |bytes: &[u8; size_of::<Entry>()]| {
        let entry = Entry::read_from_bytes(bytes).expect("invariant: the chunk has its size");
        Registrant { host: HostId { id: entry.host, name: entry.name }, key: entry.key.get() }
    };
    let registrants: Vec<_> = entries.iter().map(registrant).collect();
    let held = match head.rtype {
        0 => None,
        code => {
            let rtype = ReservationType::from_code(code).ok_or(format!("{code} is no reservation type"))?;
            Some(Held { rtype, holder: HostId { id: head.holder, name: head.holder_name } })
        }
    };
    let state = State { registrants, held, generation: head.generation.get(), persist: true };
    match state.fault() {
        Some(fault) => Err(fault.into()),
        None => Ok(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> State {
        let host = |number: u8| HostId { id: [number; 16], name: [number; 7] };
        let registrant = |number: usize| Registrant { host: host(number as u8 + 1), key: number as u64 + 7 };
        State {
            registrants: (0..REGISTRANTS_MAX).map(registrant).collect(),
            held: Some(Held { rtype: ReservationType::WriteExclusiveRegistrants, holder: host(3) }),
            generation: 0xFFFF_FFFE,
            persist: true,
        }
    }

    #[test]
    fn a_state_survives_as_far_as_it_is_to() {
        assert!(decode(&encode(&full())).is_ok_and(|state| state == full()));
        let volatile = State { persist: false, ..full() };
        assert!(encode(&volatile).is_empty() && decode(&[]).is_ok_and(|state| state == State::default()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = encode(&full());
        for (at, byte) in [(0, 0), (4, 1), (4, 3), (5, 9), (6, 63), (16, 0xEE), (32, 0xEE), (5, 0xFF), (6, 65)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(decode(&bad).is_err(), "byte {at} is {byte}");
        }
        let key_of_first = 40 + 16..40 + 24;
        let mut bad = good.clone();
        bad[key_of_first].fill(0);
        assert!(decode(&bad).is_err(), "key 0");
        let mut bad = good.clone();
        bad.copy_within(40..71, 71);
        assert!(decode(&bad).is_err(), "one host twice");
        for length in 1..good.len() {
            assert!(decode(&good[..length]).is_err(), "cut after {length} bytes");
        }
    }
}
