//! What is asked wrongly, and by whom it may not be asked.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client::Served;
use crate::provision::drives::GIB;
use crate::provision::world::{TENANT, nqn};

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_token_of_the_right_kind_is_refused() {
    let served = Served::new(&[100]).await;
    let (acme, other) = (served.tenant(TENANT).await, served.tenant("other").await);
    for header in ["", "Bearer", "Bearer ", "Bearer x", "Basic eDp5", "Bearer yagura_0_0"] {
        let answer = served.say("GET", "/v1/volumes", &[("authorization", header)], "").await;
        answer.refused(401, "unauthenticated");
        assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"yagura\"");
    }
    for (method, target) in [
        ("GET", "/v1/pool"),
        ("PUT", "/v1/nodes/a"),
        ("POST", "/v1/drives"),
        ("GET", "/v1/tenants/acme"),
        ("PUT", "/v1/tenants/acme"),
        ("POST", "/v1/tokens"),
        ("GET", "/metrics"),
        ("GET", "/v1/volumes?tenant=acme"),
        ("DELETE", "/v1/volumes/v?tenant=acme"),
        ("PUT", "/v1/volumes/v/attachment?tenant=acme"),
        ("POST", "/v1/volumes/v/grow?tenant=acme"),
        ("POST", "/v1/volumes/v/snapshots?tenant=acme"),
        ("POST", "/v1/volumes/v/restore?tenant=acme"),
        ("GET", "/v1/volumes/v/snapshots/s?tenant=acme"),
        ("DELETE", "/v1/volumes/v/snapshots/s?tenant=acme"),
        ("PUT", "/v1/volumes/v/limits?tenant=acme"),
        ("POST", "/v1/volumes/v/attachment/work?tenant=acme"),
    ] {
        let answer = served.ask(&other, method, target, "{}").await;
        answer.refused(403, "forbidden");
    }
    assert_eq!(served.ask(&other, "GET", "/v1/tenants/other", "").await.ok()["volumes"], 0);
    // Another tenant's volume and operation are not there.
    let begun = served.ask(&acme, "POST", "/v1/volumes?tenant=acme", r#"{"name":"v","bytes":4096,"replicas":1}"#).await;
    let place = begun.headers["location"].clone();
    served.ask(&acme, "GET", &place, "").await.ok();
    served.ask(&other, "GET", &place, "").await.refused(404, "not-found");
    served.ask(&other, "GET", "/v1/volumes/v", "").await.refused(404, "not-found");
    served.ask(&other, "DELETE", "/v1/volumes/v?force=true", "").await.refused(404, "not-found");
    assert_eq!(served.ask(&other, "GET", "/v1/volumes", "").await.ok()["items"], serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_by_its_kind_and_leaves_nothing() {
    let served = Served::new(&[100]).await;
    let token = served.tenant(TENANT).await;
    let volume = |fields: &str| format!(r#"{{"replicas":1,{fields}}}"#);
    let long = format!(r#""name":"{}","bytes":4096"#, "a".repeat(64));
    let bodies = [
        ("", "malformed"),
        ("{", "malformed"),
        ("[]", "malformed"),
        (&volume(r#""name":"v""#), "impossible"),
        (&volume(r#""name":"v","bytes":4096,"size":1"#), "malformed"),
        (&volume(r#""name":"v","bytes":-1"#), "malformed"),
        (&volume(r#""name":"v","bytes":4096.5"#), "malformed"),
        (&volume(r#""name":"v","bytes":"4096""#), "malformed"),
        (&volume(r#""name":"v","bytes":99999999999999999999"#), "malformed"),
        (&volume(r#""name":"V","bytes":4096"#), "malformed"),
        (&volume(r#""name":"","bytes":4096"#), "malformed"),
        (&volume(r#""name":"a/b","bytes":4096"#), "malformed"),
        (&volume(&long), "malformed"),
        (&volume(r#""name":"v","bytes":4096,"level":"galaxy""#), "malformed"),
        (&volume(r#""name":"v","bytes":4096,"from":"w""#), "malformed"),
        (&volume(r#""name":"v","bytes":4096,"from":{"snapshot":"s"}"#), "malformed"),
        (&volume(r#""name":"v","bytes":4096,"from":{"volume":"W"}"#), "malformed"),
        (&volume(r#""name":"v","bytes":4096,"from":{"volume":"w","snapshot":""}"#), "malformed"),
        (&volume(r#""name":"v","bytes":0"#), "impossible"),
        (&volume(r#""name":"v","bytes":4097"#), "impossible"),
        (&volume(r#""name":"v","bytes":18446744073709547520"#), "impossible"),
        (r#"{"name":"v","bytes":4096,"replicas":0}"#, "impossible"),
        (r#"{"name":"v","bytes":4096,"replicas":4}"#, "impossible"),
    ];
    for (body, kind) in bodies {
        let answer = served.ask(&token, "POST", "/v1/volumes", body).await;
        answer.refused(400, kind);
    }
    for (method, target, status, kind) in [
        ("GET", "/v1/volumes/V", 400, "malformed"),
        ("GET", "/v1/volumes/a%2Fb", 400, "malformed"),
        ("GET", "/v1/volumes/%FF", 400, "malformed"),
        ("GET", "/v1/volumes?after=A", 400, "malformed"),
        ("GET", "/v1/volumes?before=a", 400, "malformed"),
        ("GET", "/v1/volumes?tenant=a/b", 400, "malformed"),
        ("GET", "/v1/operations/1", 400, "malformed"),
        ("GET", "/v1/operations/00000000-0000-0000-0000-000000000000", 404, "not-found"),
        ("GET", "/v1/operations/00000000-0000-0000-0000-000000000000?wait=31", 400, "impossible"),
        ("DELETE", "/v1/volumes/none", 404, "not-found"),
        ("DELETE", "/v1/volumes/none?force=perhaps", 400, "malformed"),
        ("DELETE", "/v1/volumes/none/attachment?attachment=me", 400, "malformed"),
        ("PUT", "/v1/volumes/none/attachment", 400, "malformed"),
        ("GET", "/v1/nothing", 404, "not-found"),
        ("GET", "/", 404, "not-found"),
        ("POST", "/v1/volumes/none", 405, "method-not-allowed"),
    ] {
        served.ask(&token, method, target, "").await.refused(status, kind);
    }
    let long = volume(&format!(r#""name":"{}","bytes":4096"#, "a".repeat(70_000)));
    served.ask(&token, "POST", "/v1/volumes", &long).await.refused(413, "body-too-long");
    served.world.at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_about_a_volume_that_is_there_is_refused_by_its_kind() {
    let served = Served::new(&[100]).await;
    let token = served.tenant(TENANT).await;
    for (method, target, status, kind) in [
        ("POST", "/v1/volumes/none/grow", 400, "malformed"),
        ("POST", "/v1/volumes/none/snapshots", 400, "malformed"),
        ("POST", "/v1/volumes/none/restore", 400, "malformed"),
        ("POST", "/v1/volumes/N/restore", 400, "malformed"),
        ("GET", "/v1/volumes/none/restore", 405, "method-not-allowed"),
        ("GET", "/v1/volumes/none/snapshots", 404, "not-found"),
        ("GET", "/v1/volumes/none/snapshots/S", 400, "malformed"),
        ("DELETE", "/v1/volumes/none/snapshots/s", 404, "not-found"),
        ("PUT", "/v1/volumes/none/limits", 400, "malformed"),
        ("POST", "/v1/volumes/none/attachment/work", 400, "malformed"),
        ("GET", "/v1/operations?after=x", 400, "malformed"),
    ] {
        served.ask(&token, method, target, "").await.refused(status, kind);
    }
    for (target, body, status, kind) in [
        ("none/grow", r#"{"bytes":-1}"#, 400, "malformed"),
        ("none/grow", r#"{"bytes":4097}"#, 400, "impossible"),
        ("none/grow", r#"{"bytes":8192}"#, 404, "not-found"),
        ("none/snapshots", r#"{"name":"S"}"#, 400, "malformed"),
        ("none/snapshots", r#"{"name":"s"}"#, 404, "not-found"),
        ("none/restore", "{}", 400, "malformed"),
        ("none/restore", r#"{"snapshot":null}"#, 400, "malformed"),
        ("none/restore", r#"{"snapshot":"S"}"#, 400, "malformed"),
        ("none/restore", r#"{"snapshot":"s","force":true}"#, 400, "malformed"),
        ("none/restore", r#"{"snapshot":"s"}"#, 404, "not-found"),
        ("none/restore?wait=31", r#"{"snapshot":"s"}"#, 400, "impossible"),
        ("none/attachment/work", "{}", 400, "impossible"),
        ("none/attachment/work", r#"{"snapshots":[{"round":1}]}"#, 400, "malformed"),
    ] {
        served.ask(&token, "POST", &format!("/v1/volumes/{target}"), body).await.refused(status, kind);
    }
    for body in [r#"{"iops":0}"#, r#"{"bandwidth":1}"#, r#"{"burst":0}"#] {
        served.ask(&token, "PUT", "/v1/volumes/none/limits", body).await.refused(400, "impossible");
    }
    served.world.at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_is_told_what_can_not_be() {
    let served = Served::new(&[100]).await;
    let operator = &served.operator;
    served.ask(operator, "GET", "/v1/volumes", "").await.refused(400, "impossible");
    served.ask(operator, "GET", "/v1/volumes?tenant=nobody", "").await.refused(404, "not-found");
    served.ask(operator, "PUT", "/v1/pool", r#"{"overcommit_percent":50}"#).await.refused(400, "impossible");
    served.ask(operator, "DELETE", "/v1/nodes/n0", "").await.refused(409, "in-use");
    let drive =
        |name: &str, nqn: &str| format!(r#"{{"name":"{name}","node":"n0","address":"127.0.0.1:4420","nqn":"{nqn}"}}"#);
    let register = async |name: &str, nqn: &str| served.ask(operator, "POST", "/v1/drives", &drive(name, nqn)).await;
    register("d0", &nqn("x")).await.refused(409, "exists");
    register("x", &nqn("d0")).await.refused(409, "drive-registered");
    register("x", &nqn("nowhere")).await.refused(502, "drive-failed");
    served.world.drives.add(&nqn("x"), crate::provision::drives::SimDrive::new(100));
    served.world.drives.make_sacred(&nqn("x"), GIB);
    register("x", &nqn("x")).await.refused(409, "drive-has-namespaces");
    served.ask(operator, "PATCH", "/v1/drives/d0", r#"{"state":"lost"}"#).await.refused(400, "malformed");
    served.ask(operator, "PATCH", "/v1/drives/d0", r#"{"address":"x"}"#).await.refused(400, "malformed");
    served.ask(operator, "PATCH", "/v1/drives/d0", "{}").await.refused(400, "impossible");
    served.ask(operator, "DELETE", "/v1/tokens/x", "").await.refused(400, "malformed");
    served.ask(operator, "POST", "/v1/tokens", r#"{"tenant":"nobody"}"#).await.refused(404, "not-found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_without_a_place_is_refused_with_what_each_drive_lacks() {
    let served = Served::new(&[100, 5]).await;
    let token = served.tenant(TENANT).await;
    let answer = served.ask(&token, "POST", "/v1/volumes", r#"{"name":"v","bytes":10737418240}"#).await;
    let problem = answer.refused(507, "no-room");
    assert_eq!((&problem["drives"][0]["drive"], &problem["drives"][0]["rule"]), (&"d1".into(), &"promised".into()));
    assert!(problem["detail"].as_str().unwrap().contains("room for 1 of them: drive d1"), "{problem}");
    served.ask(&served.operator, "PUT", "/v1/tenants/acme", r#"{"quota_bytes":4096}"#).await.ok();
    let new = r#"{"name":"v","bytes":8192,"replicas":1}"#;
    served.ask(&token, "POST", "/v1/volumes", new).await.refused(507, "quota-exceeded");
    served.world.at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_too_much_under_way_waits() {
    let served = Served::new(&[100]).await;
    let token = served.tenant(TENANT).await;
    let new = |index: u32| format!(r#"{{"name":"v{index}","bytes":4096,"replicas":1}}"#);
    for index in 0..control::provision::PENDING_MAX {
        assert_eq!(served.ask(&token, "POST", "/v1/volumes", &new(index)).await.status, 202);
    }
    let answer = served.ask(&token, "POST", "/v1/volumes", &new(99)).await;
    answer.refused(429, "too-many-operations");
    assert_eq!(answer.headers["retry-after"], "2");
}

/// What comes back to who says that much and then nothing; and after how many seconds.
async fn heard(served: &Served, said: &str) -> (String, u64) {
    let began = Instant::now();
    let mut stream = TcpStream::connect(served.address).await.expect("connected");
    stream.write_all(said.as_bytes()).await.expect("said");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an end");
    (String::from_utf8(answer).expect("text"), began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn who_stands_still_gives_up_his_place() {
    let served = Served::new(&[]).await;
    for said in ["", "GET /healthz HT"] {
        let (answer, seconds) = heard(&served, said).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!((19..=21).contains(&seconds), "{said:?}: {seconds} s");
    }
    let token = &served.operator;
    let head =
        format!("PUT /v1/pool HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\ncontent-length: 9\r\n\r\n{{");
    let (answer, seconds) = heard(&served, &head).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("tag:yagura.io,2026:late"), "{answer}");
    assert!((59..=90).contains(&seconds), "{seconds} s");
}
