//! The examples, run.

use client::testing::MemoryPool;

#[path = "../../examples/kv.rs"]
#[expect(dead_code, reason = "its main is the example's")]
mod kv;
#[path = "../../examples/tasks.rs"]
#[expect(dead_code, reason = "its main is the example's")]
mod tasks;

#[test]
fn threads() {
    let pool = MemoryPool::start(3).expect("a pool in memory");
    kv::run(pool.addresses()).expect("it runs");
}

#[test]
fn tasks_on_tokio() {
    let pool = MemoryPool::start(3).expect("a pool in memory");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let done = runtime.block_on(tasks::run(pool.addresses())).expect("it runs");
    assert_eq!(done.iter().sum::<usize>(), 30, "{done:?}");
}
