//! Our parity is that of Intel's library ISA-L by its Cauchy matrix: two implementations that know nothing of each other.

use std::ffi::c_int;

use engine::rng::SplitMix;
use erasure::Code;

use crate::stripe::{Stripe, shapes};

#[link(name = "isal")]
unsafe extern "C" {
    fn gf_gen_cauchy1_matrix(matrix: *mut u8, units: c_int, data: c_int);
    fn ec_init_tables(data: c_int, parity: c_int, matrix: *const u8, tables: *mut u8);
    fn ec_encode_data(
        length: c_int,
        data: c_int,
        parity: c_int,
        tables: *const u8,
        units: *const *const u8,
        outs: *const *mut u8,
    );
}

fn parity_by_isal(data: &[&[u8]], parity: usize) -> Vec<Vec<u8>> {
    let (length, k) = (data[0].len(), data.len());
    let c = |count: usize| c_int::try_from(count).unwrap();
    let mut matrix = vec![0; (k + parity) * k];
    let mut tables = vec![0; 32 * k * parity];
    let mut made = vec![vec![0; length]; parity];
    let units: Vec<*const u8> = data.iter().map(|unit| unit.as_ptr()).collect();
    let outs: Vec<*mut u8> = made.iter_mut().map(|unit| unit.as_mut_ptr()).collect();
    // SAFETY: a matrix has a row for each unit and a column for each unit of data; tables have 32 bytes for each factor of parity;
    // all units are of one length.
    unsafe {
        gf_gen_cauchy1_matrix(matrix.as_mut_ptr(), c(k + parity), c(k));
        ec_init_tables(c(k), c(parity), matrix[k * k..].as_ptr(), tables.as_mut_ptr());
        ec_encode_data(c(length), c(k), c(parity), tables.as_ptr(), units.as_ptr(), outs.as_ptr());
    }
    made
}

/// All shapes but those of one unit of parity, which is another multiple of each unit there.
#[test]
fn parity_is_that_of_isal() {
    let mut random = SplitMix(21);
    for (data, parity) in shapes().filter(|&(_, parity)| parity > 1) {
        for length in [random.index(64), 64 + random.index(1000), 4096] {
            let stripe = Stripe::new(&Code::new(data, parity).unwrap(), length, &mut random);
            assert!(stripe.parity() == parity_by_isal(&stripe.data(), parity), "{data}+{parity}, {length} bytes");
        }
    }
}

#[test]
fn parity_of_long_units_is_that_of_isal() {
    let stripe = Stripe::new(&Code::new(10, 4).unwrap(), (1 << 20) + 13, &mut SplitMix(22));
    assert!(stripe.parity() == parity_by_isal(&stripe.data(), 4));
}
