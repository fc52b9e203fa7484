use super::*;

fn node() -> Node {
    Node { name: Name::new("a").expect("a name"), rack: None, zone: None, drives: 3 }
}

#[test]
fn a_record_is_json_with_its_version() {
    let bytes = encode(&node());
    let json = br#"{"version":1,"name":"a","rack":null,"zone":null,"drives":3}"#;
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(json));
    assert_eq!(decode::<Node>(&bytes), Ok(node()));
}

#[test]
fn a_later_record_is_refused_and_a_damaged_one_is_named() {
    let later = br#"{"version":2,"name":"a","rack":null,"zone":null,"drives":3,"new":1}"#;
    assert_eq!(decode::<Node>(later), Err(RecordError::Newer { found: 2, known: 1 }));
    // Even where nothing else in it is understood.
    assert_eq!(decode::<Node>(br#"{"version":7}"#), Err(RecordError::Newer { found: 7, known: 1 }));
    for damaged in [&b""[..], b"{}", br#"{"version":1}"#, br#"{"version":1,"name":"A","drives":0}"#, b"\xff"] {
        assert!(matches!(decode::<Node>(damaged), Err(RecordError::Damaged(_))), "{damaged:?}");
    }
}
