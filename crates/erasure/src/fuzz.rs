//! Entry point for fuzzing: any code, any lengths, any losses, any kernel.

use crate::code::Code;
use crate::kernel::Kernel;
use crate::matrix::{PARITY_MAX, UNITS_MAX};

/// Bytes of a unit. Chosen: several vectors of each kind and a tail.
const UNIT_BYTES_MAX: usize = 600;

/// A stripe whose shape, bytes and losses `bytes` tell: all kernels make the same parity, what is lost is made again, and an update
/// is as if all were encoded anew.
pub fn losses(bytes: &[u8]) {
    let Some((&[data, parity, kernel, length, part, a, b, c, d], pattern)) = bytes.split_first_chunk() else { return };
    let (data, parity) = (usize::from(data) % UNITS_MAX, usize::from(parity) % (PARITY_MAX + 1));
    let Ok(scalar) = Code::with_kernel(data, parity, Kernel::Scalar) else { return };
    let kernels = Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()).cycle();
    let Some(code) = kernels.skip(kernel.into()).find_map(|kernel| Code::with_kernel(data, parity, kernel).ok()) else {
        return;
    };
    let length = (usize::from(length) * 3).min(UNIT_BYTES_MAX);
    let mut at = pattern.iter().cycle().enumerate().map(|(number, byte)| byte.wrapping_add(number as u8));
    let mut unit = || (0..length).map(|number| at.next().unwrap_or(number as u8)).collect::<Vec<u8>>();
    let mut stripe: Vec<Vec<u8>> = (0..data).map(|_| unit()).collect();
    let changed = unit();

    let encoded = encode(&code, &stripe);
    assert_eq!(encoded, encode(&scalar, &stripe));
    stripe.extend(encoded);

    let lost = u32::from_le_bytes([a, b, c, d]);
    let is_lost = |number: usize| lost >> number & 1 == 1;
    let left: Vec<Option<&[u8]>> =
        stripe.iter().enumerate().map(|(n, unit)| (!is_lost(n)).then_some(unit.as_slice())).collect();
    // Of what is lost, not all need be asked for.
    let asked = (0..stripe.len()).filter(|&n| is_lost(n) && part >> (n % 8) & 1 == 0);
    let mut made: Vec<(usize, Vec<u8>)> = asked.map(|n| (n, vec![part; length])).collect();
    let mut wanted: Vec<(usize, &mut [u8])> = made.iter_mut().map(|(n, unit)| (*n, unit.as_mut_slice())).collect();
    let outcome = code.decode(&left, &mut wanted);
    assert_eq!(outcome.is_ok(), left.iter().flatten().count() >= data, "{outcome:?}");
    if outcome.is_ok() {
        made.iter().for_each(|(n, unit)| assert_eq!(*unit, stripe[*n], "unit {n}"));
    }

    let number = usize::from(part) % data;
    let mut updated = stripe[data..].to_vec();
    let mut outs: Vec<(usize, &mut [u8])> = (data..).zip(updated.iter_mut().map(Vec::as_mut_slice)).collect();
    assert_eq!(code.update(number, &stripe[number], &changed, &mut outs), Ok(()));
    stripe[number] = changed;
    assert_eq!(updated, encode(&scalar, &stripe[..data]));
}

fn encode(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let length = data.first().map_or(0, Vec::len);
    let mut parity = vec![vec![0; length]; code.parity()];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    assert_eq!(code.encode(&data, &mut outs), Ok(()));
    parity
}
