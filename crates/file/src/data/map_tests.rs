//! Maps against a plain array of bytes' places.

use proptest::prelude::*;

use super::*;

const FILE: u64 = 3 * SPAN_BYTES;

fn shape() -> Shape {
    Shape::new(2, 1).unwrap()
}

fn stripe(number: u32, length: u32) -> Rc<Stripe> {
    let sums = (0..shape().cut(length as usize).sums() as u32).map(|sum| sum ^ number).collect();
    let id = StripeId { chunk: number + 1, row: number % 1000, write: number.wrapping_mul(77) };
    Rc::new(Stripe { id, length, missing: number & 2, sums })
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u32),
    Punch(u64, u64),
    Truncate(u64),
    /// Rewrites the stripe of a place.
    Move(u64),
}

/// Places from 0 to 400 in each of three spans, so that they meet often.
fn place() -> impl Strategy<Value = u64> {
    (0..3u64, 0..400u64).prop_map(|(span, at)| span * SPAN_BYTES + at)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (place(), 1..200u32).prop_map(|(at, length)| Step::Write(at, length)),
        2 => (place(), 0..300u64).prop_map(|(at, length)| Step::Punch(at, length)),
        1 => place().prop_map(Step::Truncate),
        1 => place().prop_map(Step::Move),
    ]
}

/// Every byte's stripe and place in it; what was moved is followed by its origin.
type Model = std::collections::BTreeMap<u64, (StripeId, u32)>;

fn model_names(model: &Model) -> Vec<StripeId> {
    let mut names: Vec<StripeId> = model.values().map(|(id, _)| *id).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn move_stripe(map: &mut Map, model: &mut Model, old: &Rc<Stripe>, number: u32) -> Vec<Rc<Stripe>> {
    let mut moved = Vec::new();
    let mut to = 0;
    for extent in map.extents().iter().filter(|extent| extent.stripe.id == old.id) {
        moved.push(Moved { from: extent.from, length: extent.length, to });
        to += extent.length;
    }
    let new = stripe(number, to);
    for (id, from) in model.values_mut().filter(|(id, _)| *id == old.id) {
        let part = moved.iter().find(|part| (part.from..part.from + part.length).contains(from)).unwrap();
        (*id, *from) = (new.id, part.to + (*from - part.from));
    }
    map.replace(old, &new, &moved)
}

fn run(steps: Vec<Step>) {
    let (mut map, mut model) = (Map::default(), Model::new());
    for (number, step) in steps.into_iter().enumerate() {
        let number = number as u32;
        let before = model_names(&model);
        let gone = match step {
            Step::Write(at, length) => {
                let stripe = stripe(number, length);
                model.extend((0..length).map(|from| (at + u64::from(from), (stripe.id, from))));
                map.write(at, stripe)
            }
            Step::Punch(at, length) => {
                model.retain(|place, _| !(at..at + length).contains(place));
                map.punch(at..at + length)
            }
            Step::Truncate(size) => {
                model.retain(|place, _| *place < size);
                map.truncate(size)
            }
            Step::Move(at) => {
                let piece = map.lookup(at..at + 1).remove(0);
                let Piece::Data(extent) = piece else { continue };
                move_stripe(&mut map, &mut model, &extent.stripe, number)
            }
        };
        let mut gone: Vec<StripeId> = gone.iter().map(|stripe| stripe.id).collect();
        gone.sort_unstable();
        let after = model_names(&model);
        let expected: Vec<StripeId> = before.into_iter().filter(|id| !after.contains(id)).collect();
        assert_eq!(gone, expected, "each stripe that nothing names is told once, and no other one");
        check(&map, &model);
    }
}

fn check(map: &Map, model: &Model) {
    let mut found = Model::new();
    let mut at = 0;
    for piece in map.lookup(0..FILE) {
        match piece {
            Piece::Data(extent) => {
                assert_eq!(extent.at, at);
                at = extent.end();
                let bytes = (0..extent.length).map(|n| (extent.at + u64::from(n), (extent.stripe.id, extent.from + n)));
                found.extend(bytes);
            }
            Piece::Hole(range) => {
                assert_eq!(range.start, at);
                at = range.end;
            }
        }
    }
    assert_eq!((at, &found), (FILE, model));
    let mut bytes = Vec::new();
    map.encode(0, &mut bytes);
    assert_eq!(bytes.len(), map.encoded_len(0));
    assert_eq!(Map::decode(&bytes, shape(), 0..FILE).as_ref(), Ok(map));
}

proptest! {
    #[test]
    fn a_map_is_an_array_of_places(steps in proptest::collection::vec(step(), 1..60)) {
        run(steps);
    }

    /// Foreign bytes are refused or are a map that has this one form.
    #[test]
    fn whatever_the_bytes_a_map_is_one_or_damaged(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzz::file_map(&bytes);
    }

    #[test]
    fn a_changed_byte_is_damage_or_another_map(at in 0..200usize, byte in any::<u8>()) {
        let mut map = Map::default();
        (0..5).for_each(|n| drop(map.write(u64::from(n) * 700, stripe(n, 900))));
        let mut bytes = Vec::new();
        map.encode(0, &mut bytes);
        let at = at % bytes.len();
        bytes[at] = byte;
        crate::fuzz::file_map(&[&[1, 0][..], &bytes].concat());
    }
}

#[test]
fn a_write_inside_an_extent_splits_it_and_frees_nothing() {
    let mut map = Map::default();
    assert!(map.write(0, stripe(0, 1000)).is_empty());
    assert!(map.write(100, stripe(1, 50)).is_empty());
    let places: Vec<_> = map.extents().iter().map(|e| (e.at, e.length, e.from, e.stripe.id.chunk)).collect();
    assert_eq!(places, [(0, 100, 0, 1), (100, 50, 0, 2), (150, 850, 150, 1)]);
    let gone = map.punch(0..1000);
    assert_eq!(gone.len(), 2, "a stripe of two extents is freed once");
}

#[test]
fn what_no_map_is_is_damaged() {
    let mut map = Map::default();
    map.write(10, stripe(0, 5000));
    map.write(SPAN_BYTES, stripe(1, 20));
    let mut bytes = Vec::new();
    map.encode(0, &mut bytes);
    assert!(Map::decode(&bytes, shape(), 0..FILE).is_ok());
    assert!(Map::decode(&bytes, shape(), 0..SPAN_BYTES).is_err(), "behind the end of its range");
    assert!(Map::decode(&[&bytes[..], &[0]].concat(), shape(), 0..FILE).is_err(), "a byte behind it");
    for end in 0..bytes.len() {
        assert!(Map::decode(&bytes[..end], shape(), 0..FILE).is_err(), "cut at {end}");
    }
}

/// What the sizes of records were chosen for.
#[test]
fn eight_megabytes_written_by_one_fit_a_page() {
    let shape = Shape::new(4, 2).unwrap();
    let mut map = Map::default();
    for n in 0..8u32 {
        let sums = vec![n; shape.cut(1 << 20).sums()].into();
        let id = StripeId { chunk: 1, row: n * 64, write: n };
        map.write(u64::from(n) << 20, Rc::new(Stripe { id, length: 1 << 20, missing: 0, sums }));
    }
    assert!(map.encoded_len(0) < 2400, "{}", map.encoded_len(0));
}

/// One that was made by nobody here: a rewrite of it would be longer than a stripe.
#[test]
fn a_map_that_names_bytes_of_a_stripe_twice_is_damage() {
    let whole = stripe(1, 200);
    let extent = |at, length, from| Extent { at, length, from, stripe: Rc::clone(&whole) };
    let decoded = |extents: Vec<Extent>| {
        let mut bytes = Vec::new();
        Map { extents }.encode(0, &mut bytes);
        Map::decode(&bytes, shape(), 0..FILE)
    };
    assert!(decoded(vec![extent(0, 100, 0), extent(300, 100, 100)]).is_ok());
    for (first, second) in [(0, 0), (0, 99), (100, 0)] {
        let twice = decoded(vec![extent(0, 100, first), extent(300, 100, second)]);
        assert!(matches!(twice, Err(Error::Damaged(_))), "{first}, {second}: {twice:?}");
    }
}
