//! What can't be done is refused with what was wrong, and nothing is written.

use erasure::{Code, Error, Kernel};

const LENGTH: usize = 40;

fn code() -> Code {
    Code::new(4, 2).unwrap()
}

#[test]
fn shapes_are_bounded() {
    for (data, parity) in [(0, 1), (1, 0), (0, 0), (1, 9), (25, 8), (32, 1), (31, 2), (usize::MAX, 1), (1, usize::MAX)]
    {
        assert_eq!(Code::new(data, parity).unwrap_err(), Error::Shape { data, parity });
    }
    for (data, parity) in [(1, 1), (31, 1), (24, 8), (1, 8)] {
        assert!(Code::new(data, parity).is_ok());
    }
}

#[test]
fn kernels_of_other_processors_are_refused() {
    let foreign = if cfg!(target_arch = "x86_64") { Kernel::Neon } else { Kernel::Avx2 };
    assert_eq!(Code::with_kernel(4, 2, foreign).unwrap_err(), Error::Kernel(foreign));
}

#[test]
fn encode_and_check_take_all_units_of_one_length() {
    let (unit, short) = (&[1u8; LENGTH][..], &[1u8; LENGTH - 1][..]);
    let (mut first, mut second) = (vec![9; LENGTH], vec![9; LENGTH]);
    let fault = code().encode(&[unit; 3], &mut [&mut first, &mut second]);
    assert_eq!(fault, Err(Error::Count { found: 3, expected: 4 }));
    assert_eq!(code().encode(&[unit; 4], &mut [&mut first]), Err(Error::Count { found: 1, expected: 2 }));
    let length = |unit| Err(Error::Length { unit, found: LENGTH - 1, expected: LENGTH });
    assert_eq!(code().encode(&[unit, unit, short, unit], &mut [&mut first, &mut second]), length(2));
    assert_eq!(code().encode(&[unit; 4], &mut [&mut first, &mut second[1..]]), length(5));
    assert_eq!((&first, &second), (&vec![9; LENGTH], &vec![9; LENGTH]));
    assert_eq!(code().check(&[unit; 5], &[unit; 2]), Err(Error::Count { found: 5, expected: 4 }));
    assert_eq!(code().check(&[unit; 4], &[unit; 3]), Err(Error::Count { found: 3, expected: 2 }));
    assert_eq!(code().check(&[unit; 4], &[unit, short]), Err(Error::Length { unit: 5, found: 39, expected: 40 }));
}

#[test]
fn decode_takes_what_is_left_and_makes_what_is_lost() {
    let unit = Some(&[1u8; LENGTH][..]);
    let mut out = vec![9; LENGTH];
    let mut fault = |units: &[Option<&[u8]>], wanted| code().decode(units, &mut [(wanted, &mut out)]).unwrap_err();
    assert_eq!(fault(&[unit; 5], 0), Error::Count { found: 5, expected: 6 });
    assert_eq!(fault(&[None, None, unit, unit, None, unit], 0), Error::TooManyLost { lost: 3, parity: 2 });
    let one_lost = [None, unit, unit, unit, unit, unit];
    assert_eq!(fault(&one_lost, 6), Error::NoSuchUnit(6));
    assert_eq!(fault(&one_lost, 5), Error::NotLost(5));
    let mut one_short = one_lost;
    one_short[5] = Some(&[1; LENGTH + 1]);
    // Although it would not be read.
    assert_eq!(fault(&one_short, 0), Error::Length { unit: 5, found: LENGTH + 1, expected: LENGTH });
    assert_eq!(out, vec![9; LENGTH]);

    let mut outs = [vec![9; LENGTH], vec![9; LENGTH]];
    let [first, second] = &mut outs;
    assert_eq!(code().decode(&one_lost, &mut [(0, first), (0, second)]), Err(Error::Repeated(0)));
    assert_eq!(
        code().decode(&one_lost, &mut [(0, &mut first[1..])]).unwrap_err(),
        Error::Length { unit: 0, found: LENGTH - 1, expected: LENGTH }
    );
    assert_eq!(code().decode(&one_lost, &mut []), Ok(()));
    // More outputs than any code has parity.
    let wide = Code::new(12, 8).unwrap();
    let mut many = vec![vec![9; LENGTH]; 9];
    let mut wanted: Vec<(usize, &mut [u8])> = many.iter_mut().map(Vec::as_mut_slice).enumerate().collect();
    let left = [[None; 8].as_slice(), &[unit; 12]].concat();
    assert_eq!(wide.decode(&left, &mut wanted), Err(Error::Count { found: 9, expected: 8 }));
}

#[test]
fn update_takes_one_unit_of_data_and_units_of_parity() {
    let unit = &[1u8; LENGTH][..];
    let (mut first, mut second) = (vec![9; LENGTH], vec![9; LENGTH]);
    assert_eq!(code().update(4, unit, unit, &mut [(4, &mut first)]), Err(Error::NoSuchUnit(4)));
    assert_eq!(code().update(0, unit, unit, &mut [(3, &mut first)]), Err(Error::NoSuchUnit(3)));
    assert_eq!(code().update(0, unit, unit, &mut [(6, &mut first)]), Err(Error::NoSuchUnit(6)));
    assert_eq!(code().update(0, unit, unit, &mut [(4, &mut first), (4, &mut second)]), Err(Error::Repeated(4)));
    let length = |unit| Err(Error::Length { unit, found: LENGTH - 1, expected: LENGTH });
    assert_eq!(code().update(2, unit, &unit[1..], &mut [(4, &mut first)]), length(2));
    assert_eq!(code().update(2, unit, unit, &mut [(5, &mut first[1..])]), length(5));
    assert_eq!((first, second), (vec![9; LENGTH], vec![9; LENGTH]));
    assert_eq!(code().update(0, unit, unit, &mut []), Ok(()));
}

#[test]
fn errors_say_what_was_wrong() {
    let text = Error::TooManyLost { lost: 3, parity: 2 }.to_string();
    assert!(text.contains("3 units are lost, 2 may be"), "{text}");
    let text = Code::new(31, 2).unwrap_err().to_string();
    assert!(text.contains("31 units of data and 2 of parity") && text.contains("32 together"), "{text}");
}
