//! What is asked rightly.

use serde_json::Value;

use super::client::Served;
use crate::provision::drives::{GIB, HEAD, SimDrive};
use crate::provision::world::{TENANT, nqn};

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_set_up_and_a_volume_goes_its_way() {
    let served = Served::new(&[]).await;
    let _worker = served.world.worker();
    let operator = &served.operator;
    for node in ["a", "b", "c"] {
        served.world.drives.add(&nqn(node), SimDrive::new(100));
        let made = served.ask(operator, "PUT", &format!("/v1/nodes/{node}"), r#"{"rack":"r1","zone":"z1"}"#).await;
        assert_eq!(made.ok()["rack"], "r1");
        let drive = format!(r#"{{"name":"{node}","node":"{node}","address":"[::1]:4420","nqn":"{}"}}"#, nqn(node));
        let made = served.ask(operator, "POST", "/v1/drives", &drive).await;
        assert_eq!((made.status, made.ok()["total"].clone()), (201, Value::from(100 * GIB)));
    }
    served.ask(operator, "PUT", "/v1/tenants/t", r#"{"quota_bytes":21474836480}"#).await.ok();
    let token = served.ask(operator, "POST", "/v1/tokens", r#"{"tenant":"t"}"#).await;
    assert_eq!(token.status, 201);
    let token = token.ok()["token"].as_str().expect("a token").to_owned();

    let new = r#"{"name":"v","bytes":10737418240,"replicas":2}"#;
    let made = served.ask(&token, "POST", "/v1/volumes?wait=30", new).await;
    let operation = made.ok();
    assert_eq!((made.status, &operation["state"], &operation["done"]), (200, &Value::from("done"), &Value::from(4)));
    let place = &made.headers["location"];
    assert_eq!(served.ask(&token, "GET", place, "").await.ok()["id"], operation["id"]);
    let volume = served.ask(&token, "GET", "/v1/volumes/v", "").await.ok();
    let holders = volume["holders"].as_array().unwrap();
    let kinds: Vec<_> = holders.iter().map(|holder| holder["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["replica", "replica", "witness"]);
    assert_eq!(holders[0]["namespace"]["bytes"], 10 * GIB + HEAD);
    assert_eq!(holders[0]["address"], "[::1]:4420");
    // The operator sees it, too, and says whose it is.
    let listed = served.ask(operator, "GET", "/v1/volumes?tenant=t", "").await.ok();
    assert_eq!((&listed["items"][0], &listed["next"]), (&volume, &Value::Null));

    let host = r#"{"host":"nqn.2026-11.io.yagura:host:a"}"#;
    let attached = served.ask(&token, "PUT", "/v1/volumes/v/attachment", host).await.ok();
    assert_eq!(attached["attachment"]["host"], "nqn.2026-11.io.yagura:host:a");
    served.ask(&token, "DELETE", "/v1/volumes/v", "").await.refused(409, "attached");
    let detach = format!("/v1/volumes/v/attachment?attachment={}", attached["attachment"]["id"].as_str().unwrap());
    assert_eq!(served.ask(&token, "DELETE", &detach, "").await.ok()["attachment"], Value::Null);

    let shown = served.ask(operator, "GET", "/v1/drives/a", "").await.ok();
    assert_eq!((&shown["free"], &shown["unrecorded"]), (&Value::from(90 * GIB - HEAD), &Value::Array(Vec::new())));
    let metrics = served.ask(operator, "GET", "/metrics", "").await;
    let line = format!("yagura_drive_promised_bytes{{drive=\"a\"}} {}\n", 10 * GIB + HEAD);
    assert!(metrics.text.contains(&line), "{metrics:?}");
    assert!(metrics.text.contains("yagura_tenant_volumes{tenant=\"t\"} 1\n"), "{metrics:?}");

    let deleted = served.ask(&token, "DELETE", "/v1/volumes/v?wait=30", "").await;
    assert_eq!((deleted.status, deleted.ok()["state"].clone()), (200, "done".into()));
    served.ask(&token, "GET", "/v1/volumes/v", "").await.refused(404, "not-found");
    served.ask(operator, "PATCH", "/v1/drives/a", r#"{"state":"draining"}"#).await.ok();
    let moved = served.ask(operator, "PATCH", "/v1/drives/a", r#"{"address":"127.0.0.1:4421"}"#).await.ok();
    assert_eq!((&moved["address"], &moved["state"]), (&"127.0.0.1:4421".into(), &"draining".into()));
    served.ask(operator, "DELETE", "/v1/drives/a", "").await.ok();
    served.ask(operator, "DELETE", "/v1/nodes/a", "").await.ok();
    served.ask(operator, "DELETE", "/v1/tenants/t", "").await.ok();
    served.ask(&token, "GET", "/v1/volumes", "").await.refused(401, "unauthenticated");
    assert!(served.world.drives.namespaces().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_grows_has_snapshots_and_is_cloned() {
    let served = Served::new(&[100, 100, 100]).await;
    let (_worker, token) = (served.world.worker(), served.tenant(TENANT).await);
    let new = r#"{"name":"v","bytes":10737418240,"limits":{"iops":500}}"#;
    served.ask(&token, "POST", "/v1/volumes?wait=30", new).await.ok();
    let ended =
        |answer: super::client::Answer| assert_eq!((answer.status, &answer.ok()["state"]), (200, &"done".into()));
    ended(served.ask(&token, "POST", "/v1/volumes/v/grow?wait=30", r#"{"bytes":21474836480}"#).await);
    ended(served.ask(&token, "POST", "/v1/volumes/v/snapshots?wait=30", r#"{"name":"s"}"#).await);
    let snapshot = served.ask(&token, "GET", "/v1/volumes/v/snapshots/s", "").await.ok();
    assert_eq!((&snapshot["bytes"], &snapshot["copies"]), (&(20 * GIB).into(), &serde_json::json!([0, 1, 2])));
    let listed = served.ask(&token, "GET", "/v1/volumes/v/snapshots", "").await.ok();
    assert_eq!(listed["items"], serde_json::json!([snapshot]));
    let clone = r#"{"name":"w","bytes":32212254720,"from":{"volume":"v","snapshot":"s"}}"#;
    ended(served.ask(&token, "POST", "/v1/volumes?wait=30", clone).await);
    let shown = served.ask(&token, "GET", "/v1/volumes/w", "").await.ok();
    assert_eq!((&shown["bytes"], &shown["limits"]["iops"]), (&(30 * GIB).into(), &Value::Null));
    let limited = served.ask(&token, "PUT", "/v1/volumes/v/limits", r#"{"bandwidth":1048576,"burst":10}"#).await.ok();
    assert_eq!(limited["limits"], serde_json::json!({"iops":null,"bandwidth":1048576,"burst":10}));
    served.ask(&token, "DELETE", "/v1/volumes/v", "").await.refused(409, "in-use");
    // What a host that has it is told.
    let host = r#"{"host":"nqn.2026-11.io.yagura:host:a"}"#;
    let attached = served.ask(&token, "PUT", "/v1/volumes/v/attachment", host).await.ok();
    let id = attached["attachment"]["id"].as_str().unwrap();
    let work = format!("/v1/volumes/v/attachment/work?attachment={id}");
    let told = served.ask(&token, "POST", &work, "{}").await.ok();
    assert_eq!((&told["limits"]["burst"], &told["work"]), (&10.into(), &Value::Null));
    served.ask(&token, "DELETE", &format!("/v1/volumes/v/attachment?attachment={id}"), "").await.ok();
    served.ask(&token, "POST", &work, "{}").await.refused(409, "not-attached");
    // Put back in place, which is asked for twice by its name; and copied as it is.
    let back = r#"{"snapshot":"s"}"#;
    served.ask(&token, "PUT", "/v1/volumes/v/attachment", host).await.ok();
    let problem = served.ask(&token, "POST", "/v1/volumes/v/restore", back).await;
    let problem = problem.refused(409, "attached");
    assert!(problem["detail"].as_str().unwrap().contains("`yagura control detach v`"), "{problem}");
    served.ask(&token, "DELETE", "/v1/volumes/v/attachment?force=true", "").await.ok();
    let named = [("authorization", &*format!("Bearer {token}")), ("request-id", "once")];
    let first = served.say("POST", "/v1/volumes/v/restore?wait=30", &named, back).await;
    let again = served.say("POST", "/v1/volumes/v/restore?wait=30", &named, back).await;
    assert_eq!(first.ok()["id"], again.ok()["id"]);
    assert_eq!((&first.ok()["state"], &first.ok()["snapshot"]), (&"done".into(), &"s".into()));
    let copy = r#"{"name":"x","bytes":21474836480,"from":{"volume":"v"}}"#;
    ended(served.ask(&token, "POST", "/v1/volumes?wait=30", copy).await);
    assert_eq!(served.ask(&token, "GET", "/v1/volumes/x", "").await.ok()["from"]["snapshot"], Value::Null);
    // What was taken for that is gone.
    assert_eq!(served.ask(&token, "GET", "/v1/volumes/v", "").await.ok()["snapshots"], serde_json::json!(["s"]));
    ended(served.ask(&token, "DELETE", "/v1/volumes/v/snapshots/s?wait=30", "").await);
    let operations = served.ask(&token, "GET", "/v1/operations", "").await.ok();
    let kinds: std::collections::BTreeSet<_> =
        operations["items"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["clone", "create", "forget", "grow", "restore", "snapshot"]);
    let other = served.tenant("other").await;
    assert_eq!(served.ask(&other, "GET", "/v1/operations", "").await.ok()["items"], serde_json::json!([]));
    served.world.at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_figures_opens_nothing_else_and_one_with_an_end_ends() {
    let served = Served::new(&[100]).await;
    let made = served.ask(&served.operator, "POST", "/v1/tokens", r#"{"metrics":true}"#).await.ok();
    let token = made["token"].as_str().unwrap().to_owned();
    assert_eq!(made["metrics"], true);
    assert_eq!(served.ask(&token, "GET", "/metrics", "").await.status, 200);
    for (method, target) in [
        ("GET", "/v1/volumes?tenant=acme"),
        ("GET", "/v1/operations"),
        ("GET", "/v1/drives"),
        ("POST", "/v1/tokens"),
        ("GET", "/v1/tenants/acme"),
    ] {
        served.ask(&token, method, target, "{}").await.refused(403, "forbidden");
    }
    served
        .ask(&served.operator, "POST", "/v1/tokens", r#"{"metrics":true,"tenant":"acme"}"#)
        .await
        .refused(400, "impossible");
    served.ask(&served.operator, "POST", "/v1/tokens", r#"{"seconds":0}"#).await.refused(400, "impossible");
    let made = served.ask(&served.operator, "POST", "/v1/tokens", r#"{"tenant":"acme","seconds":2}"#).await.ok();
    let token = made["token"].as_str().unwrap();
    served.ask(token, "GET", "/v1/volumes", "").await.ok();
    tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
    served.ask(token, "GET", "/v1/volumes", "").await.refused(401, "unauthenticated");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_long_is_an_operation_that_can_be_waited_for() {
    let served = Served::new(&[100]).await;
    let token = served.tenant(TENANT).await;
    let new = r#"{"name":"v","bytes":4096,"replicas":1}"#;
    let begun = served.ask(&token, "POST", "/v1/volumes?wait=0", new).await;
    assert_eq!(begun.status, 202);
    let place = begun.headers["location"].clone();
    let operation = served.ask(&token, "GET", &format!("{place}?wait=1"), "").await.ok();
    assert_eq!(
        (&operation["state"], &operation["done"], &operation["steps"]),
        (&"pending".into(), &0.into(), &2.into())
    );
    assert_eq!(served.ask(&token, "GET", "/v1/volumes/v", "").await.ok()["state"], "creating");
    served.ask(&token, "DELETE", "/v1/volumes/v", "").await.refused(409, "busy");
    let worker = served.world.worker();
    let operation = served.ask(&token, "GET", &format!("{place}?wait=30"), "").await.ok();
    assert_eq!(operation["state"], "done");
    worker.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_is_one_request_however_often_it_is_sent() {
    let served = Served::new(&[100, 100, 100]).await;
    let token = served.tenant(TENANT).await;
    let new = |bytes: u64| format!(r#"{{"name":"v","bytes":{bytes}}}"#);
    // At once, too.
    let (body, mut places) = (new(4096), Vec::new());
    let ask = || served.ask_as(&token, "r1", "POST", "/v1/volumes", &body);
    let (a, b, c) = tokio::join!(ask(), ask(), ask());
    for answer in [a, b, c, ask().await] {
        assert_eq!(answer.status, 202, "{answer:?}");
        places.push(answer.headers["location"].clone());
    }
    places.dedup();
    assert_eq!(places.len(), 1, "{places:?}");
    let other = served.ask_as(&token, "r1", "POST", "/v1/volumes", &new(8192)).await;
    other.refused(422, "request-id-reused");
    served.ask_as(&token, "r1", "DELETE", "/v1/volumes/v", "").await.refused(422, "request-id-reused");
    served.ask_as(&token, "r2", "POST", "/v1/volumes", &new(4096)).await.refused(409, "exists");
    served.ask_as(&token, "a b", "POST", "/v1/volumes", &new(4096)).await.refused(400, "malformed");
    // An operator's ids are others.
    let target = format!("/v1/volumes?tenant={TENANT}");
    served.ask_as(&served.operator, "r1", "POST", &target, &new(4096)).await.refused(409, "exists");
    let id = places[0].rsplit('/').next().unwrap().parse().unwrap();
    served.world.end(id).await;
    served.world.at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_go_on_where_they_ended() {
    let served = Served::new(&[]).await;
    for index in 0..103 {
        served.ask(&served.operator, "PUT", &format!("/v1/nodes/n{index:03}"), "{}").await.ok();
    }
    let first = served.ask(&served.operator, "GET", "/v1/nodes", "").await.ok();
    assert_eq!((first["items"].as_array().unwrap().len(), &first["next"]), (100, &"n099".into()));
    let rest = served.ask(&served.operator, "GET", "/v1/nodes?after=n099", "").await.ok();
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (3, &Value::Null));
    assert_eq!(rest["items"][2]["name"], "n102");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_describes_what_is_served() {
    let served = Served::new(&[]).await;
    assert_eq!(served.say("GET", "/healthz", &[], "").await.text, "ok\n");
    let document = served.say("GET", "/openapi.json", &[], "").await.ok();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    let mut seen = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let target = path
            .replace("{name}", "none")
            .replace("{snapshot}", "none")
            .replace("{id}", "00000000-0000-0000-0000-000000000000");
        for method in methods.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            // Known, and only for those with a token.
            served.say(&method, &target, &[], "").await.refused(401, "unauthenticated");
            let answer = served.ask(&served.operator, &method, &target, "").await;
            assert!(answer.status != 405 && !answer.text.contains("there is nothing at this address"), "{answer:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, 37);
    // Whatever is referred to is there.
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
    for name in [
        "NewVolume",
        "SnapshotView",
        "Limits",
        "Report",
        "Wish",
        "VolumeView",
        "OperationView",
        "Problem",
        "Drive",
        "Node",
        "Tenant",
    ] {
        assert!(document["components"]["schemas"][name]["properties"].is_object(), "{name}");
    }
}
