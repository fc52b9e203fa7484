//! What suites, databases and tools ask of a file system that is not in its own tests: faults that are over, members that are full,
//! where bytes are, times.

use std::time::Duration;

use engine::time;
use file::record::Time;
use file::{Error, ROOT, SetMode};

use crate::opened::{MIB, Place, bytes, make};
use crate::world::{create, run};

/// A fault that is over, as all has been stored since, was told by the next flush, after which databases give up; and a flush told
/// of a fault of before without one try of its own.
#[test]
fn a_fault_that_is_over_is_told_to_nobody() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let _alive = files.keep_itself_alive();
        let file = make(&files, "a").await;
        file.write(0, &[7; 5000]).await.unwrap();
        place.set_down(true);
        time::sleep(Duration::from_secs(11)).await;
        let stored = async || files.names().getattr(file.ino()).await.unwrap().size;
        assert_eq!(stored().await, 0, "no member answers");
        place.set_down(false);
        time::sleep(Duration::from_secs(11)).await;
        assert_eq!(stored().await, 5000);
        assert_eq!(file.flush().await, Ok(()), "it is stored since");
        file.write(0, &[8; 5000]).await.unwrap();
        place.set_down(true);
        time::sleep(Duration::from_secs(11)).await;
        place.set_down(false);
        assert_eq!(file.flush().await, Ok(()), "this one stores it");
    });
}

/// Writes were taken until memory was full, long after members were; the program was told when it closed the file, if it asked.
#[test]
fn who_writes_on_where_members_are_full_is_told_by_the_write() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        let (mut taken, mut at) = (0, 0);
        let block = vec![7; MIB as usize];
        let refused = loop {
            match file.write(at, &block).await {
                Ok(length) => (taken, at) = (taken + length as u64, at + MIB),
                Err(error) => break error,
            }
            // Others are written meanwhile.
            time::sleep(Duration::from_millis(100)).await;
        };
        assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
        // Three members of 32 MiB hold 64 MiB of data; what was on its way when the first block failed was taken.
        assert!((40 * MIB..80 * MIB).contains(&taken), "{taken}");
        file.truncate(0).await.unwrap();
        let other = make(&files, "b").await;
        time::sleep(Duration::from_secs(120)).await;
        assert_eq!(other.write(0, &block).await, Ok(MIB as usize), "there is room again");
        assert_eq!(other.flush().await, Ok(()));
    });
}

/// Where bytes are and where none are was told to nobody: a copy of a file of holes took all of its length.
#[test]
fn data_and_holes_are_found() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        assert_eq!((file.seek(0, true).await, file.seek(0, false).await), (Ok(None), Ok(None)), "it is empty");
        file.write(0, b"short").await.unwrap();
        assert_eq!(file.seek(2, true).await, Ok(Some(2)));
        assert_eq!(file.seek(2, false).await, Ok(Some(5)), "the end is a hole");
        assert_eq!((file.seek(5, true).await, file.seek(5, false).await), (Ok(None), Ok(None)));
        let far = 3 << 40;
        for (at, length) in [(0, MIB), (5 * MIB, MIB), (far, MIB)] {
            file.write(at, &vec![7; length as usize]).await.unwrap();
        }
        file.truncate(far + 2 * MIB).await.unwrap();
        for (at, data, hole) in [
            (0, Some(0), Some(MIB)),
            (MIB - 1, Some(MIB - 1), Some(MIB)),
            (MIB, Some(5 * MIB), Some(MIB)),
            (5 * MIB + 7, Some(5 * MIB + 7), Some(6 * MIB)),
            (7 * MIB, Some(far), Some(7 * MIB)),
            (far + MIB, None, Some(far + MIB)),
            (far + 2 * MIB, None, None),
        ] {
            assert_eq!((file.seek(at, true).await, file.seek(at, false).await), (Ok(data), Ok(hole)), "from {at}");
        }
    });
}

/// Room that is to be set aside makes a file longer, and never shorter: another may have written behind it meanwhile.
#[test]
fn a_file_grows_and_is_not_cut() {
    run(1, async {
        let place = Place::new().await;
        let (files, others) = (place.client().await, place.client().await);
        let file = make(&files, "a").await;
        file.write(0, &[7; 100]).await.unwrap();
        file.grow(3 * MIB).await.unwrap();
        let mut told = vec![7; 100];
        told.resize(3 * MIB as usize, 0);
        assert!(bytes(&file).await == told);
        let other = others.open_file(file.ino()).await.unwrap();
        other.write(5 * MIB, b"end").await.unwrap();
        other.flush().await.unwrap();
        for size in [4 * MIB, 10, 5 * MIB + 3] {
            file.grow(size).await.unwrap();
        }
        assert_eq!(file.read(5 * MIB, 100).await.unwrap().to_vec(), b"end");
    });
}

/// When a file was last accessed stayed when it was made; cut to its own length it had not been changed.
#[test]
fn times_are_of_the_write() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let file = make(&files, "a").await;
        let names = files.names();
        for at in [0, 4 * MIB] {
            time::sleep(Duration::from_secs(3)).await;
            file.write(at, &[7; 5000]).await.unwrap();
            let told = files.getattr(file.ino()).await.unwrap();
            time::sleep(Duration::from_secs(3)).await;
            file.flush().await.unwrap();
            let stored = names.getattr(file.ino()).await.unwrap();
            assert_eq!((stored.modified, stored.accessed), (told.modified, told.modified));
        }
        // To the same length.
        let before = names.getattr(file.ino()).await.unwrap();
        time::sleep(Duration::from_secs(3)).await;
        file.truncate(before.size).await.unwrap();
        let after = names.getattr(file.ino()).await.unwrap();
        assert!(after.modified > before.modified && after.changed > before.changed, "{after:?}");
    });
}

/// Of a directory of many names other hosts were told when it was changed last, when this one changed it again, or ended.
#[test]
fn a_large_directory_tells_others_when_it_was_changed() {
    run(1, async {
        let place = Place::new().await;
        let (files, others) = (place.client().await, place.client().await);
        let _alive = files.keep_itself_alive();
        for number in 0..200 {
            create(files.names(), ROOT, &format!("a name that takes some bytes {number}")).await;
        }
        time::sleep(Duration::from_secs(5)).await;
        create(files.names(), ROOT, "the last but one").await;
        time::sleep(Duration::from_millis(100)).await;
        let before = Time::now();
        create(files.names(), ROOT, "the last").await;
        time::sleep(Duration::from_secs(2)).await;
        let told = others.names().getattr(ROOT).await.unwrap();
        assert!(told.modified >= before && told.changed >= before, "{told:?}");
    });
}

/// Attributes of no namespace were taken.
#[test]
fn attributes_have_a_namespace() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let (file, names) = (make(&files, "a").await, files.names());
        for name in ["user.a", "trusted.a", "security.capability"] {
            assert_eq!(names.set_xattr(file.ino(), name.as_bytes(), b"v", SetMode::Any).await, Ok(()), "{name}");
            assert_eq!(names.get_xattr(file.ino(), name.as_bytes()).await, Ok(b"v".to_vec()), "{name}");
        }
        for name in ["a", "user.", "system.posix_acl_access", "other.a"] {
            let set = names.set_xattr(file.ino(), name.as_bytes(), b"v", SetMode::Any).await;
            assert!(matches!(set, Err(Error::NotSupported(_))), "{name}: {set:?}");
        }
    });
}
