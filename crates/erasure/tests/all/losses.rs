//! Whatever is lost, up to as many units as there is parity, is made again.

use engine::rng::SplitMix;
use erasure::Code;

use crate::stripe::{Stripe, drawn, kernels, shapes};

/// Units of the codes of which all losses are tried.
const ALL_LOSSES: usize = 12;

#[test]
fn any_losses_of_small_codes_are_made_again() {
    let mut random = SplitMix(1);
    for (data, parity) in shapes().filter(|(data, parity)| data + parity <= ALL_LOSSES) {
        let stripe = Stripe::new(&Code::new(data, parity).unwrap(), 3, &mut random);
        for lost in (0u32..1 << (data + parity)).filter(|lost| lost.count_ones() <= parity as u32) {
            stripe.is_made_again(lost, lost);
            // Only some, or none, of what is lost.
            stripe.is_made_again(lost, lost & random.draw() as u32);
        }
    }
}

#[test]
fn random_losses_of_all_codes_are_made_again() {
    let mut random = SplitMix(2);
    for (data, parity) in shapes() {
        let length = random.index(200);
        let stripe = Stripe::new(&Code::new(data, parity).unwrap(), length, &mut random);
        for _ in 0..60 {
            let mut lost = 0u32;
            for _ in 0..parity {
                lost |= 1 << random.index(data + parity);
            }
            stripe.is_made_again(lost, lost);
            stripe.is_made_again(lost, lost & random.draw() as u32);
        }
    }
}

#[test]
fn every_kernel_makes_again_what_another_has_encoded() {
    let mut random = SplitMix(3);
    for (data, parity) in [(2, 1), (4, 2), (8, 3), (10, 4), (24, 8)] {
        for length in [1, 63, 64, 1000, 4096, 5000] {
            let mut stripe = Stripe::new(&Code::new(data, parity).unwrap(), length, &mut random);
            for kernel in kernels() {
                stripe.code = Code::with_kernel(data, parity, kernel).unwrap();
                let first = (1u32 << parity) - 1;
                stripe.is_made_again(first, first);
                stripe.is_made_again(first << data, first << data);
                stripe.is_made_again(first << (data - 1), first << (data - 1));
            }
        }
    }
}

/// Of units that are left beyond those needed, the bytes are not looked at: a rebuild reads as much as there is data.
#[test]
fn no_more_is_read_than_there_is_data() {
    let stripe = Stripe::new(&Code::new(5, 3).unwrap(), 100, &mut SplitMix(4));
    let rot = [0x77; 100];
    let mut left = stripe.without(0b10);
    (left[6], left[7]) = (Some(&rot[..]), Some(&rot[..]));
    let mut made = vec![0; 100];
    stripe.code.decode(&left, &mut [(1, &mut made)]).unwrap();
    assert_eq!(made, stripe.units[1]);
}

#[test]
fn one_unit_of_parity_is_the_exclusive_or() {
    for data in [1, 2, 7, 31] {
        let stripe = Stripe::new(&Code::new(data, 1).unwrap(), 77, &mut SplitMix(5));
        let xor = |at: usize| stripe.data().iter().fold(0, |sum, unit| sum ^ unit[at]);
        assert_eq!(stripe.units[data], (0..77).map(xor).collect::<Vec<u8>>());
    }
}

#[test]
fn fuzz_entry_holds_over_random_inputs() {
    let mut random = SplitMix(6);
    for _ in 0..3000 {
        let length = random.index(60);
        erasure::fuzz::losses(&drawn(&mut random, length));
    }
}
