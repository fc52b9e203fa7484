//! Files against plain arrays of bytes: by one client and by several, with members that come and go and outcomes that nobody
//! learns.

use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::{task, time};
use file::data::{Audit, Auditor, Content, Inode, Piece};
use file::meta::Meta;

use super::bed::{Bed, Host, Node, drawn, in_world, rope};

/// What is done to a file, and to an array.
#[derive(Clone, Debug)]
pub enum Step {
    Write(usize, Vec<u8>),
    /// Parts that lie apart from one another, ascending.
    Scatter(Vec<(usize, Vec<u8>)>),
    Truncate(usize),
    Punch(usize, usize),
}

impl Step {
    pub fn draw(rng: &mut SplitMix, size: usize, largest: usize) -> Step {
        let length = match rng.index(4) {
            0 => rng.index(100) + 1,
            1 => rng.index(5000) + 1,
            2 => 4096 * (rng.index(8) + 1),
            _ => rng.index(60_000) + 1,
        };
        let at = if rng.index(3) == 0 { size } else { rng.index((size + 3000).min(largest)) };
        match rng.index(12) {
            0 => Step::Truncate(rng.index((size + 5000).min(largest))),
            1 => Step::Truncate(0),
            2 => Step::Punch(rng.index(size + 1), rng.index(20_000)),
            3 => Step::scatter(rng, at),
            _ => Step::Write(at, drawn(rng, length)),
        }
    }

    /// Some parts from a place on.
    pub fn scatter(rng: &mut SplitMix, mut at: usize) -> Step {
        let count = 2 + rng.index(8);
        let part = |_| {
            let (from, length) = (at, rng.index(3000) + 1);
            at += length + rng.index(4000);
            (from, drawn(rng, length))
        };
        Step::Scatter((0..count).map(part).collect())
    }

    pub fn apply(&self, model: &mut Vec<u8>) {
        match self {
            Step::Write(at, bytes) => put(model, *at, bytes),
            Step::Scatter(parts) => parts.iter().for_each(|(at, bytes)| put(model, *at, bytes)),
            Step::Truncate(size) => model.resize(*size, 0),
            Step::Punch(from, length) => {
                let (from, to) = ((*from).min(model.len()), (from + length).min(model.len()));
                model[from..to].fill(0);
            }
        }
    }

    pub async fn run(&self, host: &Host, node: &Node) -> Result<(), file::Error> {
        match self {
            Step::Write(at, bytes) => host.contents.write(node, *at as u64, rope(bytes)).await,
            Step::Scatter(parts) => {
                host.contents
                    .write_parts(node, parts.iter().map(|(at, bytes)| (*at as u64, rope(bytes))).collect())
                    .await
            }
            Step::Truncate(size) => host.contents.truncate(node, *size as u64).await,
            Step::Punch(from, length) => host.contents.punch(node, *from as u64..(from + length) as u64).await,
        }
    }
}

fn put(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    model.resize(model.len().max(end), 0);
    model[at..end].copy_from_slice(bytes);
}

pub async fn content(host: &Host, node: &Node) -> Vec<u8> {
    host.contents.read(node, 0..u64::MAX, true).await.unwrap().to_vec()
}

/// What records of space say beside the maps of all files: nothing that contradicts.
pub async fn audit(bed: &Bed, nodes: &[u64]) -> Audit {
    let host = bed.host();
    let mut named = Vec::new();
    for number in nodes {
        let stripes = host.contents.stripes_of(&*Node::new(&host, *number)).await.unwrap();
        named.extend(stripes.into_iter().map(|(_, stripe)| stripe));
    }
    let meta: Rc<dyn Meta> = Rc::clone(&host.meta) as Rc<dyn Meta>;
    let audit = Auditor::new(meta, Rc::clone(host.contents.members())).audit(&named).await.unwrap();
    assert_eq!(audit.faults, [""; 0]);
    audit
}

/// Every stripe with a column missing is written anew.
async fn repair(host: &Host, node: &Node) {
    for (at, stripe) in host.contents.stripes_of(node).await.unwrap() {
        if stripe.missing != 0 {
            host.contents.rewrite(node, at, stripe.id).await.unwrap();
        }
    }
}

async fn random_steps(seed: u64, shape: (usize, usize), members: usize) {
    let mut rng = SplitMix(seed);
    let bed = Bed::new(seed, shape, members, 12).await;
    bed.store.unknown_ppm.set(if seed.is_multiple_of(2) { 100_000 } else { 0 });
    bed.store.delay.set(Duration::from_millis(1));
    let mut host = bed.host();
    let nodes: Vec<u64> = vec![1, 2];
    let mut models = [Vec::new(), Vec::new()];
    for number in &nodes {
        Node::new(&host, *number).create().await;
    }
    let mut down: Option<usize> = None;
    for step in 0..120 {
        let file = rng.index(2);
        let node = Node::new(&host, nodes[file]);
        let change = Step::draw(&mut rng, models[file].len(), 400_000);
        // Now and then the caller goes away, and tries the same again.
        if rng.index(5) == 0 {
            let patience = Duration::from_micros(rng.below(8000));
            let _ = time::timeout(patience, change.run(&host, &node)).await;
        }
        change.run(&host, &node).await.unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
        change.apply(&mut models[file]);
        if rng.index(4) == 0 {
            let from = rng.index(models[file].len() + 1);
            let to = (from + rng.index(20_000)).min(models[file].len());
            let read = host.contents.read(&*node, from as u64..to as u64, rng.index(2) == 0).await.unwrap();
            assert_eq!(read.to_vec(), models[file][from..to], "seed {seed}, step {step}");
        }
        match rng.index(10) {
            // A member goes, or is back with what it missed; nothing else may go before that is mended.
            0 => match down.take() {
                None => {
                    let member = rng.index(members);
                    bed.shelves[member].is_down.set(true);
                    down = Some(member);
                }
                Some(member) => {
                    bed.shelves[member].is_down.set(false);
                    time::sleep(Duration::from_secs(6)).await;
                    for number in &nodes {
                        repair(&host, &Node::new(&host, *number)).await;
                    }
                }
            },
            1 => {
                host.contents.space().close().await;
                host = bed.host();
            }
            _ => {}
        }
    }
    audit(&bed, &nodes).await;
    let other = bed.host();
    for (number, model) in nodes.iter().zip(&models) {
        assert_eq!(content(&other, &Node::new(&other, *number)).await, *model, "seed {seed}");
    }
}

#[test]
fn a_file_is_an_array_of_bytes_whatever_members_and_store_do() {
    for seed in 0..12 {
        let (shape, members) = [((2, 1), 5), ((4, 2), 8), ((1, 1), 3)][seed as usize % 3];
        in_world(seed, random_steps(seed, shape, members));
    }
}

/// Whoever commits to a span that others change keeps what they committed, and they what it did.
#[test]
fn writers_of_one_file_lose_nothing_of_one_another() {
    for seed in 0..8 {
        in_world(seed, async move {
            let bed = Rc::new(Bed::new(seed, (2, 1), 4, 30).await);
            let first = bed.host();
            Node::new(&first, 1).create().await;
            bed.store.delay.set(Duration::from_millis(2));
            bed.store.unknown_ppm.set(50_000);
            let mut tasks = Vec::new();
            // Each has every third kilobyte of its own; the file goes through all kinds of content meanwhile.
            for writer in 0..3usize {
                let bed = Rc::clone(&bed);
                tasks.push(task::spawn(async move {
                    let (host, mut rng) = (bed.host(), SplitMix(seed * 10 + writer as u64));
                    let node = Node::new(&host, 1);
                    let mut own = vec![None; 120];
                    for _ in 0..60 {
                        let place = rng.index(own.len());
                        let bytes = drawn(&mut rng, 1000);
                        let at = ((place * 3 + writer) * 1000) as u64;
                        // Where nobody can tell whether it was made, it is made again.
                        while host.contents.write(&*node, at, rope(&bytes)).await.is_err() {}
                        own[place] = Some(bytes);
                    }
                    host.contents.space().close().await;
                    own
                }));
            }
            let mut model = vec![0; 120 * 3 * 1000];
            for (writer, task) in tasks.into_iter().enumerate() {
                for (place, bytes) in task.await.into_iter().enumerate() {
                    let at = (place * 3 + writer) * 1000;
                    model[at..at + 1000].copy_from_slice(&bytes.unwrap_or(vec![0; 1000]));
                }
            }
            audit(&bed, &[1]).await;
            let found = content(&first, &Node::new(&first, 1)).await;
            assert_eq!(found, model[..found.len()], "seed {seed}");
            assert!(model[found.len()..].iter().all(|byte| *byte == 0));
            let (state, _) = Node::new(&first, 1).load(true).await.unwrap();
            assert!(matches!(state.content, Content::Spans(_)), "or spans were not tried");
        });
    }
}

/// Rows of an old map are others' by now: what lies there must not be given out, and the new map be read.
#[test]
fn a_reader_with_an_old_map_reads_no_bytes_of_others() {
    in_world(5, async {
        let mut rng = SplitMix(5);
        let bed = Bed::new(5, (2, 1), 3, 2).await;
        let (writer, reader) = (bed.host(), bed.host());
        let (one, two) = (Node::new(&writer, 1), Node::new(&writer, 2));
        one.create().await;
        two.create().await;
        let seen = Node::new(&reader, 1);
        let mut bytes = drawn(&mut rng, 700_000);
        writer.contents.write(&*one, 0, rope(&bytes)).await.unwrap();
        for round in 0..20 {
            assert_eq!(reader.contents.read(&*seen, 0..700_000, false).await.unwrap().to_vec(), bytes, "round {round}");
            bytes = drawn(&mut rng, 700_000);
            writer.contents.write(&*one, 0, rope(&bytes)).await.unwrap();
            // Four megabytes in all: the other file comes to lie where the first one was.
            let other = drawn(&mut rng, 700_000);
            writer.contents.write(&*two, 0, rope(&other)).await.unwrap();
        }
    });
}

#[test]
fn small_writes_at_random_are_put_together_and_a_map_stays_short() {
    in_world(6, async {
        let mut rng = SplitMix(6);
        let bed = Bed::new(6, (2, 1), 3, 24).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let mut model = drawn(&mut rng, 3 << 20);
        host.contents.write(&*node, 0, rope(&model)).await.unwrap();
        for _ in 0..900 {
            let at = rng.index((3 << 20) / 4096) * 4096;
            let step = Step::Write(at, drawn(&mut rng, 4096));
            step.run(&host, &node).await.unwrap();
            step.apply(&mut model);
        }
        assert!(host.contents.figures().compactions.get() > 0);
        let stripes = host.contents.stripes_of(&*node).await.unwrap();
        assert!(stripes.len() < 500, "{}", stripes.len());
        assert_eq!(content(&host, &node).await, model);
    });
}

/// A map that has grown as long as it may, as nothing could be read to put it together: when that is possible again, it is done
/// by the write that finds no room in it.
#[test]
fn a_map_that_is_full_is_made_shorter_by_the_next_write() {
    in_world(8, async {
        let mut rng = SplitMix(8);
        let bed = Bed::new(8, (2, 1), 3, 60).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        bed.shelves.iter().for_each(|shelf| shelf.is_unreadable.set(true));
        // Each has 64 checksums, and of each only the first part is named in the end.
        let (mut model, mut failed) = (Vec::new(), None);
        for n in 0..240 {
            let step = Step::Write(n * (32 << 10), drawn(&mut rng, 256 << 10));
            match step.run(&host, &node).await {
                Ok(()) => step.apply(&mut model),
                Err(error) => failed = Some((step, error)),
            }
            if failed.is_some() {
                break;
            }
        }
        let (step, error) = failed.expect("the map is never full");
        assert!(error.to_string().contains("too many pieces"), "{error}");
        bed.shelves.iter().for_each(|shelf| shelf.is_unreadable.set(false));
        step.run(&host, &node).await.unwrap();
        step.apply(&mut model);
        assert!(content(&host, &node).await == model);
        audit(&bed, &[1]).await;
    });
}

/// The part that is in most pieces can't be read; others can, and are put together instead.
#[test]
fn what_cant_be_read_keeps_no_other_part_in_pieces() {
    in_world(9, async {
        let mut bed = Bed::new(9, (2, 1), 6, 24).await;
        let out = |bed: &mut Bed, members: std::ops::Range<usize>| {
            bed.specs.iter_mut().enumerate().for_each(|(index, spec)| spec.is_out = members.contains(&index));
        };
        out(&mut bed, 3..6);
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        for n in 0..400 {
            host.contents.write(&*node, n * 5000, rope(&[1; 5000])).await.unwrap();
        }
        host.contents.space().close().await;
        assert_eq!(host.contents.figures().compactions.get(), 0, "the map is not long yet");
        bed.shelves[..2].iter().for_each(|shelf| shelf.is_down.set(true));
        out(&mut bed, 0..3);
        let host = bed.host();
        let node = Node::new(&host, 1);
        for n in 0..200 {
            host.contents.write(&*node, (3 << 20) + n * 5000, rope(&[2; 5000])).await.unwrap();
        }
        assert!(host.contents.figures().compactions.get() > 0, "all of it waits for what can't be read");
    });
}

/// It costs what was written, not how far: spans that have nothing are not asked for one by one.
#[test]
fn a_byte_far_out_is_truncated_at_the_cost_of_a_byte() {
    in_world(10, async {
        let bed = Bed::new(10, (2, 1), 3, 8).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let far = 1 << 55;
        for n in 0..200 {
            host.contents.write(&*node, n * 5000, rope(&[1; 4000])).await.unwrap();
        }
        let steps = async {
            host.contents.write(&*node, far, rope(&[2; 4000])).await.unwrap();
            let data = |pieces: Vec<Piece>| pieces.iter().filter(|piece| matches!(piece, Piece::Data(_))).count();
            assert_eq!(data(host.contents.pieces(&*node, 0..u64::MAX).await.unwrap()), 201);
            assert_eq!(host.contents.stripes_of(&*node).await.unwrap().len(), 201);
            host.contents.punch(&*node, 1000..far + 100).await.unwrap();
            assert_eq!(host.contents.stripes_of(&*node).await.unwrap().len(), 2);
            host.contents.truncate(&*node, far - 5).await.unwrap();
            host.contents.truncate(&*node, 0).await.unwrap();
        };
        bed.store.delay.set(Duration::from_millis(1));
        let before = bed.store.gets.get();
        time::timeout(Duration::from_secs(60), steps).await.expect("every span was asked for");
        assert!(bed.store.gets.get() - before < 1000, "{}", bed.store.gets.get() - before);
        bed.store.delay.set(Duration::ZERO);
        host.contents.space().close().await;
        assert_eq!(audit(&bed, &[1]).await.chunks, []);
    });
}

/// A long file that is sparse, longer and shorter: what comes back into it is zeroes.
#[test]
fn what_was_cut_off_stays_zeroes() {
    in_world(7, async {
        let bed = Bed::new(7, (2, 1), 3, 40).await;
        let host = bed.host();
        let node = Node::new(&host, 1);
        node.create().await;
        let mut model = Vec::new();
        let far = 21 << 20;
        let steps = (0..40).map(|n| Step::Write(n * 50_000, vec![n as u8 + 1; 45_000])).chain([
            Step::Write(far, vec![7; 9000]),
            Step::Truncate(far + 100),
            Step::Truncate(far + 5000),
            Step::Truncate(1_000_000),
            Step::Write(far, vec![8; 10]),
            Step::Truncate(999_999),
            Step::Write(1_200_000, vec![9; 10]),
            Step::Truncate(0),
            Step::Write(500, vec![1; 10]),
            Step::Truncate(3_000_000),
        ]);
        for step in steps {
            step.run(&host, &node).await.unwrap();
            step.apply(&mut model);
            assert!(content(&host, &node).await == model, "after {step:?}");
        }
        assert!(host.contents.write(&*node, u64::MAX - 5, rope(&[1; 3])).await.is_err());
    });
}
