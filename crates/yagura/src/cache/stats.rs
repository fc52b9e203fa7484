//! `yagura cache stats` and `top`: what a server of memcached's protocols tells of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ask::Asker;
use crate::cli::{CacheStatsArgs, CacheTopArgs};
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// Lines of `top` between two headings.
const HEADING_LINES: u64 = 20;

/// The general statistics that are numbers.
fn figures(asker: &mut Asker) -> Result<BTreeMap<String, f64>, Failure> {
    let lines = asker.ask("")?;
    Ok(lines.into_iter().filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect())
}

/// Tells statistics once.
pub fn stats(args: &CacheStatsArgs) -> Result<(), Failure> {
    let lines = Asker::connect(&args.server)?.ask(&args.name.join(" "))?;
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let object: serde_json::Map<String, serde_json::Value> =
        lines.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    output::report(args.common.json, &object, |_| {
        lines.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
    })
}

/// Tells what happens, a line for each interval.
pub fn top(args: &CacheTopArgs) -> Result<(), Failure> {
    let interval = Duration::from_secs(u64::from(args.interval));
    let mut asker = Asker::connect(&args.server)?;
    let mut before = figures(&mut asker)?;
    let mut line = 0;
    while args.count == 0 || line < args.count {
        std::thread::sleep(interval);
        let now = figures(&mut asker)?;
        if args.common.json {
            let rates: BTreeMap<&str, f64> =
                RATES.iter().map(|name| (*name, rate(&before, &now, name, interval))).collect();
            let text = serde_json::json!({ "figures": now, "per_second": rates });
            output::write(format!("{text}\n").as_bytes())?;
        } else {
            if line % HEADING_LINES == 0 {
                output::write(heading().as_bytes())?;
            }
            output::write(row(&before, &now, interval).as_bytes())?;
        }
        (before, line) = (now, line + 1);
    }
    Ok(())
}

/// Counts whose rates are told.
const RATES: [&str; 9] = [
    "cmd_get",
    "get_hits",
    "get_extstore",
    "cmd_set",
    "delete_hits",
    "evictions",
    "total_connections",
    "bytes_read",
    "bytes_written",
];

fn heading() -> String {
    let names = ["gets/s", "hits", "flash", "sets/s", "evict/s", "in/s", "out/s", "items", "held", "conns"];
    names.iter().map(|name| format!("{name:>10}")).collect::<String>() + "\n"
}

fn row(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>, interval: Duration) -> String {
    let of = |name: &str| rate(before, now, name, interval);
    let value = |name: &str| now.get(name).copied().unwrap_or(0.0);
    let size = |bytes: f64| Size(bytes as u64).to_string();
    let gets = of("cmd_get");
    let share = |of: f64| if gets > 0.0 { format!("{:.1} %", 100.0 * of / gets) } else { "-".to_owned() };
    // memcached itself tells only what its items take.
    let held = if now.contains_key("memory_held") { value("memory_held") } else { value("bytes") };
    let columns = [
        format!("{gets:.0}"),
        share(of("get_hits")),
        // memcached tells it under this name too.
        share(of("get_extstore")),
        format!("{:.0}", of("cmd_set")),
        format!("{:.0}", of("evictions")),
        size(of("bytes_read")),
        size(of("bytes_written")),
        format!("{:.0}", value("curr_items")),
        size(held),
        format!("{:.0}", value("curr_connections")),
    ];
    columns.iter().map(|column| format!("{column:>10}")).collect::<String>() + "\n"
}

fn rate(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>, name: &str, interval: Duration) -> f64 {
    let value = |at: &BTreeMap<String, f64>| at.get(name).copied().unwrap_or(0.0);
    // A server that was started anew, or whose statistics were reset, counts from 0.
    (value(now) - value(before)).max(0.0) / interval.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_rates_and_shares() {
        let figures = |gets: f64, hits: f64| {
            BTreeMap::from([("cmd_get".to_owned(), gets), ("get_hits".to_owned(), hits), ("bytes".to_owned(), 2048.0)])
        };
        let text = row(&figures(100.0, 90.0), &figures(300.0, 240.0), Duration::from_secs(2));
        let columns: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(&columns[..5], &["100", "75.0", "%", "0.0", "%"]);
        assert!(text.contains("2 KiB"), "{text}");
        assert_eq!(rate(&figures(9.0, 0.0), &figures(4.0, 0.0), "cmd_get", Duration::from_secs(1)), 0.0);
    }
}
