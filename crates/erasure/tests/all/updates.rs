//! Parity follows its data, and is seen not to.

use engine::rng::SplitMix;
use erasure::{Code, PARITY_MAX};

use crate::stripe::{Stripe, drawn, kernels};

const SHAPES: [(usize, usize); 6] = [(1, 1), (2, 1), (4, 2), (8, 3), (10, 4), (24, PARITY_MAX)];

#[test]
fn an_update_is_as_if_all_were_encoded_anew() {
    let mut random = SplitMix(11);
    for (data, parity) in SHAPES {
        for kernel in kernels() {
            let code = Code::with_kernel(data, parity, kernel).unwrap();
            for unit in 0..data {
                let length = random.index(700);
                let mut stripe = Stripe::new(&code, length, &mut random);
                let new = drawn(&mut random, length);
                let mut updated: Vec<Vec<u8>> = stripe.parity().iter().map(|unit| unit.to_vec()).collect();
                let mut outs: Vec<(usize, &mut [u8])> =
                    (data..).zip(updated.iter_mut().map(Vec::as_mut_slice)).collect();
                code.update(unit, &stripe.units[unit], &new, &mut outs).unwrap();
                stripe.units[unit] = new;
                stripe.encode();
                assert!(updated == stripe.parity(), "{kernel:?} {data}+{parity}, unit {unit} of {length} bytes");
            }
        }
    }
}

/// A part of one unit of parity alone, as a host does that has lost another, in any order.
#[test]
fn parity_is_updated_alone_and_in_part() {
    let mut random = SplitMix(12);
    let code = Code::new(6, 4).unwrap();
    let mut stripe = Stripe::new(&code, 500, &mut random);
    let before = stripe.clone();
    let new = drawn(&mut random, 100);
    let (mut third, mut first) = (stripe.units[8].clone(), stripe.units[6].clone());
    let old = &stripe.units[2][200..300];
    code.update(2, old, &new, &mut [(8, &mut third[200..300]), (6, &mut first[200..300])]).unwrap();
    stripe.units[2][200..300].copy_from_slice(&new);
    stripe.encode();
    assert_eq!((&third, &first), (&stripe.units[8], &stripe.units[6]));
    assert_ne!(stripe.units[8], before.units[8]);
}

#[test]
fn a_check_sees_every_changed_byte() {
    let mut random = SplitMix(13);
    for (data, parity) in SHAPES {
        for length in [0, 1, 1024, 1025, 3000] {
            let stripe = Stripe::new(&Code::new(data, parity).unwrap(), length, &mut random);
            let check = |stripe: &Stripe| stripe.code.check(&stripe.data(), &stripe.parity()).unwrap();
            assert!(check(&stripe));
            for unit in (0..data + parity).filter(|_| length > 0) {
                for at in [0, length / 2, length - 1] {
                    let mut changed = stripe.clone();
                    changed.units[unit][at] ^= 1 << random.index(8);
                    assert!(!check(&changed), "{data}+{parity}: byte {at} of {length} of unit {unit}");
                }
            }
        }
    }
}
