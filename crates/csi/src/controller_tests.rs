use control::provision::Level;
use serde_json::{Value, json};
use tonic::Code;

use super::*;

fn size(required_bytes: i64, limit_bytes: i64) -> Result<Size, Code> {
    Size::of(Some(CapacityRange { required_bytes, limit_bytes })).map_err(|status| status.code())
}

#[test]
fn sizes_are_rounded_to_what_a_volume_can_have() {
    let (block, most) = (VOLUME_ALIGN as i64, VOLUME_BYTES_MAX as i64);
    let made = |required, limit| size(required, limit).map(|size| size.bytes as i64);
    assert_eq!(made(0, 0), Ok(USUAL_BYTES as i64));
    assert_eq!(Size::of(None).map(|size| size.bytes).map_err(|status| status.code()), Ok(USUAL_BYTES));
    assert_eq!(made(1, 0), Ok(block));
    assert_eq!(made(block + 1, 3 * block), Ok(2 * block));
    assert_eq!(made(0, 3 * block + 1), Ok(3 * block));
    assert_eq!(made(most, 0), Ok(most));
    for (required, limit, code) in [
        (-1, 0, Code::InvalidArgument),
        (0, -1, Code::InvalidArgument),
        (2, 1, Code::InvalidArgument),
        (block + 1, 2 * block - 1, Code::OutOfRange),
        (0, block - 1, Code::OutOfRange),
        (most + 1, 0, Code::OutOfRange),
        (i64::MAX, 0, Code::OutOfRange),
    ] {
        assert_eq!(made(required, limit), Err(code), "{required} {limit}");
    }
}

fn volume(bytes: u64, replicas: usize, level: &str) -> VolumeView {
    let id = "3f0c7d2e-5b4f-4a53-9d87-0f2f6a1f7b11";
    let holder = json!({"kind": "replica", "drive": "a", "address": "10.0.0.1:4420", "nqn": "nqn.2026-11.io.yagura:a",
        "namespace": null});
    let view: Value = json!({"id": id, "tenant": "a", "name": "db", "bytes": bytes, "state": "ready", "level": level,
        "holders": vec![holder; replicas], "attachment": null, "operation": null, "limits": {}, "snapshots": [], "created": 0});
    serde_json::from_value(view).expect("a volume")
}

#[test]
fn a_volume_of_the_name_is_the_one_that_is_asked_for_or_in_the_way() {
    let asked = Parameters { replicas: 2, level: Level::Rack, relax: false };
    let compared = |volume: &VolumeView, range: (i64, i64), asked: &Parameters| {
        let wanted = size(range.0, range.1).expect("a size");
        same(volume, &wanted, asked).map_err(|status| status.code())
    };
    let (there, other) = (volume(8192, 2, "rack"), Err(Code::AlreadyExists));
    for range in [(8192, 8192), (8192, 0), (4097, 0), (0, 8192), (0, 0)] {
        assert_eq!(compared(&there, range, &asked), Ok(()), "{range:?}");
    }
    for range in [(8193, 0), (0, 4096), (4096, 4096)] {
        assert_eq!(compared(&there, range, &asked), other, "{range:?}");
    }
    assert_eq!(compared(&there, (0, 0), &Parameters { replicas: 3, ..asked }), other);
    assert_eq!(compared(&volume(8192, 2, "node"), (0, 0), &asked), other);
    assert_eq!(compared(&volume(8192, 2, "zone"), (0, 0), &asked), other);
    assert_eq!(compared(&volume(8192, 2, "node"), (0, 0), &Parameters { relax: true, ..asked }), Ok(()));
}

#[test]
fn words_that_have_to_be_there_are_asked_for() {
    let code = |text: &str| required("name", text).map(str::len).map_err(|status| status.code());
    assert_eq!(code(""), Err(Code::InvalidArgument));
    assert_eq!(code(&"a".repeat(128)), Ok(128));
    assert_eq!(code(&"a".repeat(129)), Err(Code::InvalidArgument));
}
