//! Quotas of directories: what counts, what is refused, and what never is.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use engine::job::Jobs;
use engine::rng::SplitMix;
use engine::{task, time};
use file::data::{Content, Map, ROW_BYTES, SPAN_BYTES, Shape};
use file::mend::Mender;
use file::meta::MemoryMeta;
use file::record::Record;
use file::record::inode::{Content as InRecord, Inode};
use file::record::quota::QuotaRecord;
use file::{Amount, Error, FileSystem, Files, Limits, OpenFile, ROOT, RenameFlags};

use crate::data::bed::drawn;
use crate::opened::Place;
use crate::world::{HEAD, client, create, file, fresh, kind_of, mkdir, names, run};

pub const ROW: u64 = ROW_BYTES as u64;
pub const MIB: u64 = 1 << 20;
const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false };

pub fn limits(bytes: Option<u64>, files: Option<u64>) -> Limits {
    Limits { bytes, files }
}

/// A directory that has a quota.
pub async fn with_quota(fs: &FileSystem, dir: u64, name: &str, bytes: Option<u64>, files: Option<u64>) -> u64 {
    let made = mkdir(fs, dir, name).await;
    fs.set_quota(made, limits(bytes, files)).await.unwrap();
    made
}

fn map_bytes(map: &Map) -> i64 {
    map.stripes().iter().map(|stripe| u64::from(stripe.length).next_multiple_of(ROW) as i64).sum()
}

/// The map of a span, by its record's bytes.
fn span_map(value: &[u8], span: u64, shape: Shape) -> Map {
    let mut body = &value[2 + 8 * usize::from(value[1])..];
    while body[0] & 0x80 != 0 {
        body = &body[1..];
    }
    Map::decode(&body[1..], shape, span * SPAN_BYTES..(span + 1) * SPAN_BYTES).unwrap()
}

/// What counts for each quota, counted from outside; and what their records say.
pub fn counted(meta: &MemoryMeta) -> BTreeMap<u64, (Amount, QuotaRecord)> {
    let shape = Shape::new(2, 1).unwrap();
    let (mut truth, mut maps, mut records) =
        (BTreeMap::<u64, Amount>::new(), BTreeMap::<(u64, u64), u64>::new(), BTreeMap::new());
    let all = meta.dump();
    let of_kind = |kind: u8| all.iter().filter(move |(key, _)| !key.contains(&b'=') && kind_of(key) == Some(&kind));
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
    for (key, value) in of_kind(b'i') {
        let inode = Inode::decode(value).unwrap();
        if inode.quota == 0 || inode.is_going() {
            continue;
        }
        let mut amount = Amount::FILE;
        if let InRecord::Stripes(bytes) = &inode.content {
            match Content::decode(bytes, shape).unwrap() {
                Content::Extents(map) => amount.bytes = map_bytes(&map),
                Content::Spans(spans) => drop(maps.insert((number(&key[HEAD + 1..]), spans.map), inode.quota)),
                Content::Inline(_) => {}
            }
        }
        let sum = truth.entry(inode.quota).or_default();
        *sum = *sum + amount;
    }
    for (key, value) in of_kind(b'b') {
        let place = &key[HEAD + 1..];
        if let Some(quota) = maps.get(&(number(place), number(&place[8..]))) {
            let sum = truth.entry(*quota).or_default();
            sum.bytes += map_bytes(&span_map(value, number(&place[16..]), shape));
        }
    }
    for (key, value) in of_kind(b'q') {
        let dir = number(&key[HEAD + 1..]);
        records.insert(dir, (truth.remove(&dir).unwrap_or_default(), QuotaRecord::decode(value).unwrap()));
    }
    assert!(truth.is_empty(), "what counts for a quota that is not there: {truth:?}");
    records
}

/// No quota says that less is used than is there.
pub fn assert_covered(meta: &MemoryMeta) {
    for (dir, (truth, record)) in counted(meta) {
        assert!(truth.fits(record.taken()), "{dir}: {truth:?} are there, and {record:?}");
    }
}

/// All say what is there.
pub fn assert_exact(meta: &MemoryMeta) {
    for (dir, (truth, record)) in counted(meta) {
        assert_eq!((record.used, record.shares), (truth, Vec::new()), "of directory {dir}");
    }
}

pub async fn make_in(files: &Rc<Files>, dir: u64, name: &str) -> Result<Rc<OpenFile>, Error> {
    Ok(files.create_file(dir, name.as_bytes(), &file()).await?.1)
}

async fn used(files: &Files, dir: u64) -> (i64, i64) {
    let quota = files.names().quota_of(dir).await.unwrap().unwrap();
    (quota.used.bytes, quota.used.files)
}

#[test]
fn files_of_all_kinds_count_until_they_are_removed() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let dir = with_quota(&fs, ROOT, "dir", None, Some(4)).await;
        let sub = mkdir(&fs, dir, "sub").await;
        create(&fs, sub, "a").await;
        fs.symlink(dir, b"link", b"sub/a", 0, 0).await.unwrap();
        create(&fs, dir, "b").await;
        for more in ["c", "sub2"] {
            let refused = fs.create(dir, more.as_bytes(), &file(), true).await;
            assert!(matches!(&refused, Err(Error::Quota(why)) if why.contains("4 of 4 files")), "{refused:?}");
        }
        assert!(matches!(fs.mkdir(sub, b"below", 0o755, 0, 0).await, Err(Error::Quota(_))), "also below it");
        create(&fs, ROOT, "outside").await;
        assert_covered(&meta);
        // A second name is no second file.
        let a = fs.lookup(sub, b"a").await.unwrap().ino;
        fs.link(a, dir, b"again").await.unwrap();
        fs.unlink(sub, b"a").await.unwrap();
        assert!(matches!(fs.create(dir, b"c", &file(), true).await, Err(Error::Quota(_))));
        fs.rmdir(dir, b"sub").await.unwrap();
        create(&fs, dir, "c").await;
        fs.rename((dir, b"c"), (dir, b"b"), PLAIN).await.unwrap();
        create(&fs, dir, "d").await;
        for name in ["again", "link", "b", "d"] {
            fs.unlink(dir, name.as_bytes()).await.unwrap();
        }
        let quota = fs.quota_of(dir).await.unwrap().unwrap();
        assert_eq!((quota.used, quota.dir), (Amount::ZERO, dir));
        fs.close().await.unwrap();
        assert_exact(&meta);
    });
}

#[test]
fn what_counts_for_one_quota_gets_no_name_in_another() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let (one, two) =
            (with_quota(&fs, ROOT, "one", None, None).await, with_quota(&fs, ROOT, "two", None, None).await);
        let below = mkdir(&fs, one, "below").await;
        let inner = with_quota(&fs, one, "inner", None, Some(1)).await;
        for dir in [ROOT, one, two, below, inner] {
            create(&fs, dir, "file").await;
        }
        let is_across = |done: Result<(), Error>| matches!(done, Err(Error::Across(_)));
        for (from, to) in [(one, two), (ROOT, one), (one, ROOT), (inner, one), (below, inner)] {
            assert!(is_across(fs.rename((from, b"file"), (to, b"moved"), PLAIN).await), "{from} to {to}");
            let exchange = RenameFlags { exchange: true, ..PLAIN };
            assert!(is_across(fs.rename((from, b"file"), (to, b"file"), exchange).await), "{from} with {to}");
            let ino = fs.lookup(from, b"file").await.unwrap().ino;
            assert!(is_across(fs.link(ino, to, b"linked").await.map(drop)), "{from} to {to}");
        }
        // A directory that has a quota counts for the one that it is in.
        assert!(is_across(fs.rename((one, b"inner"), (two, b"inner"), PLAIN).await));
        fs.rename((one, b"inner"), (below, b"inner"), PLAIN).await.unwrap();
        fs.rename((one, b"file"), (below, b"moved"), PLAIN).await.unwrap();
        fs.rename((ROOT, b"two"), (ROOT, b"other"), PLAIN).await.unwrap();
        let refused = fs.create(inner, b"second", &file(), true).await;
        assert!(matches!(refused, Err(Error::Quota(_))), "it goes with the directory: {refused:?}");
        let quotas: Vec<u64> = fs.quotas().await.unwrap().iter().map(|quota| quota.dir).collect();
        assert_eq!(quotas, [one, two, inner]);
        fs.close().await.unwrap();
        assert_exact(&meta);
    });
}

/// What was open under the other name had a keeper then, and stood among its client's orphans, until it was closed.
#[test]
fn a_move_that_a_quota_refuses_leaves_nothing_behind() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let (fs, dir) = (files.names(), with_quota(files.names(), ROOT, "dir", None, None).await);
        create(fs, ROOT, "moved").await;
        let file = make_in(&files, dir, "there").await.unwrap();
        let refused = fs.rename((ROOT, b"moved"), (dir, b"there"), PLAIN).await;
        assert!(matches!(refused, Err(Error::Across(_))), "{refused:?}");
        assert_eq!(fs.get_inode(file.ino()).await.unwrap().keepers, Vec::<u64>::new());
        files.close_file(&file).await.unwrap();
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

#[test]
fn a_quota_is_given_to_an_empty_directory_and_its_limits_change_any_time() {
    run(1, async {
        let meta = fresh().await;
        let (_, fs) = client(&meta).await;
        let full = mkdir(&fs, ROOT, "full").await;
        let ino = create(&fs, full, "file").await;
        let refused = fs.set_quota(full, limits(Some(MIB), None)).await;
        assert!(matches!(&refused, Err(Error::HasNames(_))), "{refused:?}");
        assert!(refused.unwrap_err().to_string().contains("yagura file cp --recursive"));
        assert!(matches!(fs.set_quota(ino, Limits::default()).await, Err(Error::NotDirectory(_))));
        assert_eq!(fs.quota_of(full).await, Ok(None));
        fs.unlink(full, b"file").await.unwrap();
        fs.set_quota(full, limits(None, Some(1))).await.unwrap();
        create(&fs, full, "file").await;
        assert!(matches!(fs.create(full, b"more", &file(), true).await, Err(Error::Quota(_))));
        fs.set_quota(full, limits(None, Some(2))).await.unwrap();
        create(&fs, full, "more").await;
        // Lowered below what is there, nothing goes, and nothing more comes.
        fs.set_quota(full, limits(None, Some(1))).await.unwrap();
        fs.unlink(full, b"file").await.unwrap();
        // What this client has set aside it may use; after half a minute it goes back.
        time::sleep(Duration::from_secs(31)).await;
        fs.settle_quotas().await;
        assert!(matches!(fs.create(full, b"third", &file(), true).await, Err(Error::Quota(_))));
        fs.set_quota(full, Limits::default()).await.unwrap();
        create(&fs, full, "third").await;
        fs.close().await.unwrap();
        assert_exact(&meta);
    });
}

/// Another makes something there, who has read the directory before it had a quota.
#[test]
fn what_comes_as_the_quota_is_given_is_told() {
    run(1, async {
        let meta = fresh().await;
        let ((_, fs), (_, other)) = (client(&meta).await, client(&meta).await);
        let dir = mkdir(&fs, ROOT, "dir").await;
        create(&other, dir, "before").await;
        other.unlink(dir, b"before").await.unwrap();
        let setting = task::spawn({
            let fs = Rc::clone(&fs);
            async move { fs.set_quota(dir, limits(None, Some(3))).await }
        });
        time::sleep(Duration::from_millis(300)).await;
        create(&other, dir, "late").await;
        let told = setting.await;
        assert!(matches!(&told, Err(Error::Across(what)) if what.contains("late")), "{told:?}");
        fs.unlink(dir, b"late").await.unwrap();
        create(&other, dir, "counts").await;
        for fs in [fs, other] {
            fs.close().await.unwrap();
        }
        assert_eq!(counted(&meta)[&dir].0, Amount::FILE);
        assert_exact(&meta);
    });
}

#[test]
fn rows_of_data_count_as_long_as_a_byte_of_them_is_there() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(4 * MIB), None).await;
        let file = make_in(&files, dir, "file").await.unwrap();
        // What fits the inode counts nothing, whatever it comes by.
        file.write(0, &[1; 1500]).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(used(&files, dir).await, (0, 1));
        file.write(1500, &[2; 5000]).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(used(&files, dir).await.0 as u64, ROW + 2 * ROW, "what was in the inode, and what came");
        file.write(0, &vec![3; MIB as usize]).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(used(&files, dir).await.0 as u64, MIB);
        file.write(10, &[4; 10]).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(used(&files, dir).await.0 as u64, MIB + ROW);
        file.truncate(100).await.unwrap();
        assert_eq!(used(&files, dir).await.0 as u64, MIB + ROW, "of both stripes a byte is there");
        file.punch(0, 8192).await.unwrap();
        assert_eq!(used(&files, dir).await.0, 0);
        // Many pieces, so that the map is a long one; also what puts them together counts.
        let mut rng = SplitMix(3);
        for _ in 0..400 {
            let (at, length) = (rng.below(600_000), 1 + rng.index(2000));
            file.write(at, &drawn(&mut rng, length)).await.unwrap();
            file.flush().await.unwrap();
        }
        assert!(files.names().get_inode(file.ino()).await.unwrap().size > 500_000);
        // It goes with the last close, and no sooner.
        let before = used(&files, dir).await;
        files.names().unlink(dir, b"file").await.unwrap();
        assert_eq!((used(&files, dir).await, before.1), (before, 1));
        files.close_file(&file).await.unwrap();
        assert_eq!(used(&files, dir).await, (0, 0));
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

#[test]
fn what_is_open_without_a_name_goes_with_its_client_and_counts_no_more() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(MIB), None).await;
        for name in ["small", "large"] {
            let file = make_in(&files, dir, name).await.unwrap();
            file.write(0, &vec![1; if name == "small" { 10 } else { 100_000 }]).await.unwrap();
            file.flush().await.unwrap();
            files.names().unlink(dir, name.as_bytes()).await.unwrap();
        }
        assert_eq!(used(&files, dir).await.1, 2);
        files.close().await.unwrap();
        assert_eq!(counted(&place.meta)[&dir].0, Amount::ZERO);
        assert_exact(&place.meta);
    });
}

#[test]
fn who_writes_over_a_quota_is_told_by_the_write_and_nothing_that_was_taken_is_dropped() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(MIB + 64 * 1024), None).await;
        let (file, inside) =
            (make_in(&files, dir, "file").await.unwrap(), make_in(&files, dir, "inside").await.unwrap());
        inside.write(0, &[9; 1000]).await.unwrap();
        inside.flush().await.unwrap();
        let mut written = 0u64;
        let refused = loop {
            match file.write(written, &[7; 10_000]).await {
                Ok(more) => written += more as u64,
                Err(error) => break error,
            }
        };
        assert!(matches!(&refused, Error::Quota(why) if why.contains("bytes")), "{refused:?}");
        assert!(written > MIB && place.meta.dump().iter().all(|(key, _)| kind_of(key) != Some(&b'b')), "{written}");
        // Small files, and names, still come; bytes past what is gathered, and behind the end, do not.
        inside.write(1000, &[8; 1000]).await.unwrap();
        make_in(&files, dir, "another").await.unwrap();
        assert!(matches!(inside.write(2000, &[8; 40_000]).await, Err(Error::Quota(_))));
        assert!(matches!(file.append(&[1; 100_000]).await, Err(Error::Quota(_))));
        let rope = crate::data::bed::rope(&[1; 100_000]);
        assert!(matches!(file.write_through(0, rope).await, Err(Error::Quota(_))));
        file.flush().await.unwrap();
        inside.flush().await.unwrap();
        assert_eq!(file.read(0, 4 * MIB as usize).await.unwrap().to_vec(), vec![7; written as usize]);
        assert_eq!(inside.read(0, 5000).await.unwrap().len(), 2000);
        let (truth, record) = counted(&place.meta)[&dir].clone();
        assert!(truth.bytes as u64 <= MIB + 64 * 1024 && truth.fits(record.taken()), "{truth:?} {record:?}");
        // What is freed can be had at once.
        file.truncate(500_000).await.unwrap();
        file.punch(0, 400_000).await.unwrap();
        file.truncate(0).await.unwrap();
        file.write(0, &vec![5; 1 << 20]).await.unwrap();
        file.flush().await.unwrap();
        for file in [file, inside] {
            files.close_file(&file).await.unwrap();
        }
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

/// A byte in an inode counts nothing; made longer, the file had a row that nobody had asked for, however full the quota was.
#[test]
fn what_leaves_its_inode_as_the_file_is_made_longer_is_refused_over_a_quota() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(4 * ROW), None).await;
        let mut is_longer = Vec::new();
        for number in 0..8 {
            let file = make_in(&files, dir, &format!("f{number}")).await.unwrap();
            file.write(0, b"x").await.unwrap();
            let done = file.truncate(ROW).await;
            assert!(matches!(done, Ok(()) | Err(Error::Quota(_))), "{done:?}");
            is_longer.push(done.is_ok());
            assert_eq!(file.read(0, 8192).await.unwrap().len(), if done.is_ok() { ROW as usize } else { 1 });
            file.truncate(2000).await.unwrap();
            files.close_file(&file).await.unwrap();
        }
        assert_eq!(is_longer, [[true; 4], [false; 4]].concat());
        // What has no bytes has no row, and one that has gone into stripes needs no other.
        let empty = make_in(&files, dir, "empty").await.unwrap();
        empty.truncate(MIB).await.unwrap();
        files.close_file(&empty).await.unwrap();
        assert_eq!(used(&files, dir).await, (4 * ROW as i64, 9));
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}

/// Others take all that is left between the write and the flush, and the flush needs more than was set aside.
#[test]
fn what_was_taken_goes_out_though_others_have_used_up_the_quota() {
    run(1, async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        let dir = with_quota(one.names(), ROOT, "dir", Some(200 * 1024), None).await;
        let file = make_in(&one, dir, "file").await.unwrap();
        file.write(2000, &[2; 60_000]).await.unwrap();
        let other = make_in(&two, dir, "other").await.unwrap();
        let mut at = 0;
        while other.write(at, &[3; 4096]).await.is_ok() {
            at += 4096;
        }
        other.flush().await.unwrap();
        // In the inode lies something at the flush, and nothing when the bytes were gathered.
        two.names().write_inline(file.ino(), 0, &[4; 1500]).await.unwrap();
        file.flush().await.unwrap();
        let read = file.read(0, 100_000).await.unwrap().to_vec();
        assert!(read == [[4; 1500].as_slice(), &[0; 500], &[2; 60_000]].concat());
        assert_covered(&place.meta);
        for (files, file) in [(one, file), (two, other)] {
            files.close_file(&file).await.unwrap();
            files.close().await.unwrap();
        }
        assert_exact(&place.meta);
        assert!(counted(&place.meta)[&dir].0.bytes <= 204 * 1024);
    });
}

#[test]
fn what_a_client_does_not_use_is_had_by_others_soon() {
    run(1, async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        let dir = with_quota(one.names(), ROOT, "dir", Some(10 * MIB), Some(100)).await;
        let alive: Vec<_> = [&one, &two].map(Files::keep_itself_alive).into();
        for (files, name) in [(&one, "one"), (&two, "two")] {
            let file = make_in(files, dir, name).await.unwrap();
            file.write(0, &[1; 5000]).await.unwrap();
            files.close_file(&file).await.unwrap();
        }
        let shares = |meta: &MemoryMeta| counted(meta)[&dir].1.shares.len();
        assert_eq!(shares(&place.meta), 2);
        time::sleep(Duration::from_secs(45)).await;
        assert_eq!(shares(&place.meta), 0);
        assert_exact(&place.meta);
        drop(alive);
        let found: BTreeSet<String> =
            names(one.names(), dir, 9).await.unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, BTreeSet::from(["one".to_owned(), "two".to_owned()]));
        for files in [one, two] {
            files.close().await.unwrap();
        }
    });
}

/// What is moved counts once, also where nothing more may come.
#[test]
fn what_is_written_anew_by_a_rebuild_counts_as_before() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let dir = with_quota(files.names(), ROOT, "dir", Some(400 * 1024), None).await;
        let (short, long) = (make_in(&files, dir, "short").await.unwrap(), make_in(&files, dir, "long").await.unwrap());
        place.shelves[1].is_down.set(true);
        short.write(0, &[1; 100_000]).await.unwrap();
        short.flush().await.unwrap();
        let mut at = 0;
        while long.write(at, &[2; 9000]).await.is_ok() {
            long.flush().await.unwrap();
            at += 12_000;
        }
        place.shelves[1].is_down.set(false);
        let before = used(&files, dir).await;
        let mender = Mender::new(Rc::clone(&files), Jobs::default().begin("rebuild", None, None));
        let rebuilt = mender.rebuild().await.unwrap();
        assert!(rebuilt.rewritten > 20 && rebuilt.left.is_clean(), "{rebuilt:?}");
        assert_eq!(used(&files, dir).await, before);
        for file in [short, long] {
            files.close_file(&file).await.unwrap();
        }
        drop(mender);
        files.close().await.unwrap();
        assert_exact(&place.meta);
    });
}
