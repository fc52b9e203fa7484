//! `yagura file layout`: a file's stripes × members, each with what it holds of them: data, parity, or nothing though it should.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ::file::data::{Region, StripeId};
use ::file::{Files, OpenFile, Part, Spot, column_bytes};
use serde::Serialize;

use super::fault::{failure, path_failure};
use super::place::Inside;
use super::session::Session;
use crate::cli::FileLayoutArgs;
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// Members in a line of text. Chosen: with what is in front it fits a terminal of 80 columns.
const LINE_MEMBERS: usize = 48;

/// What a member has of some stripes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
enum Held {
    /// The column is there.
    There,
    /// It was not written.
    Missing,
    /// It would be zeroes, and lies nowhere: the stripe is short.
    Empty,
}

/// A column of some stripes.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
struct Column {
    member: u16,
    region: u32,
    /// Of data the first is 0, those of parity come behind.
    column: usize,
    is_parity: bool,
    held: Held,
}

/// Bytes that lie side by side in the file, and alike on members.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
struct Run {
    from: u64,
    to: u64,
    /// "stripes", "hole", "inode", or "lost": no such chunk is known.
    lies: &'static str,
    chunk: Option<u32>,
    stripes: u64,
    columns: Vec<Column>,
}

#[derive(Serialize)]
struct MemberShown {
    member: u16,
    place: String,
    domain: String,
    is_reached: bool,
    is_out: bool,
}

#[derive(Serialize)]
struct Picture {
    path: String,
    size: u64,
    data: usize,
    parity: usize,
    /// Those that have something of the file.
    members: Vec<MemberShown>,
    runs: Vec<Run>,
}

/// Draws where a file lies.
pub async fn layout(session: &Session, args: &FileLayoutArgs) -> Result<(), Failure> {
    let path = Inside::parse(&args.path)?;
    let files = session.files(&path).await?;
    let failed = |error| path_failure(&path, error);
    let told = files.resolve(&path.path, true).await.map_err(failed)?;
    let file = files.open_file(told.ino).await.map_err(failed)?;
    let range = args.range.map_or(0..u64::MAX, |range| range.from..range.to);
    let runs = runs(&files, &file, range).await;
    files.close_file(&file).await.map_err(failed)?;
    let runs = runs.map_err(|failure| failure.during(&path))?;
    let picture = Picture::of(&files, &path, told.size, runs);
    output::report(args.common.json, &picture, Picture::text)
}

/// Bytes that lie alike are one run.
async fn runs(files: &Files, file: &Rc<OpenFile>, range: std::ops::Range<u64>) -> Result<Vec<Run>, Failure> {
    let shape = files.members().layout().shape;
    let mut runs: Vec<Run> = Vec::new();
    let mut lying = file.lying(range).await.map_err(failure)?;
    while let Some(parts) = lying.next().await.map_err(failure)? {
        let mut known: BTreeSet<StripeId> = BTreeSet::new();
        for Part { range, spot } in parts {
            let mut run =
                Run { from: range.start, to: range.end, lies: "hole", chunk: None, stripes: 0, columns: Vec::new() };
            match spot {
                Spot::Hole => {}
                Spot::Inode => run.lies = "inode",
                Spot::Stripe(stripe) => {
                    let regions = file.columns_of(stripe.id).await.map_err(failure)?;
                    run.lies = if regions.is_some() { "stripes" } else { "lost" };
                    run.chunk = Some(stripe.id.chunk);
                    run.stripes = u64::from(known.insert(stripe.id));
                    let filled = column_bytes(&stripe, shape);
                    let column = |(column, (Region { member, region }, bytes)): (usize, (Region, Option<u64>))| {
                        let held = match bytes {
                            None => Held::Missing,
                            Some(0) => Held::Empty,
                            Some(_) => Held::There,
                        };
                        Column { member, region, column, is_parity: column >= shape.data(), held }
                    };
                    run.columns = regions.unwrap_or_default().into_iter().zip(filled).enumerate().map(column).collect();
                }
            }
            match runs.last_mut() {
                Some(last) if last.is_like(&run) => {
                    last.to = run.to;
                    last.stripes += run.stripes;
                }
                _ => runs.push(run),
            }
        }
    }
    Ok(runs)
}

impl Run {
    fn is_like(&self, next: &Run) -> bool {
        (self.to, self.lies, self.chunk) == (next.from, next.lies, next.chunk) && self.columns == next.columns
    }

    /// What is drawn of a member.
    fn mark(&self, member: u16, data: usize) -> char {
        let Some(column) = self.columns.iter().find(|column| column.member == member) else { return '.' };
        match column.held {
            Held::Missing => 'x',
            Held::Empty => '-',
            Held::There if column.is_parity => char::from(b'P' + (column.column - data).min(9) as u8),
            Held::There => char::from_digit(column.column as u32, 36).unwrap_or('#'),
        }
    }
}

impl Picture {
    fn of(files: &Files, path: &Inside, size: u64, runs: Vec<Run>) -> Picture {
        let shape = files.members().layout().shape;
        let root = files.roster().root();
        let named: BTreeSet<u16> = runs.iter().flat_map(|run| &run.columns).map(|column| column.member).collect();
        let member = |index: u16| {
            let record = root.members.get(usize::from(index));
            let reached = files.members().get(index);
            MemberShown {
                member: index,
                place: record.map_or_else(String::new, |record| record.place.clone()),
                domain: record.map_or_else(String::new, |record| record.domain.clone()),
                is_reached: reached.as_ref().is_some_and(|member| member.is_reachable()),
                is_out: reached.is_some_and(|member| member.is_out()),
            }
        };
        Picture {
            path: path.to_string(),
            size,
            data: shape.data(),
            parity: shape.parity(),
            members: named.into_iter().map(member).collect(),
            runs,
        }
    }

    fn text(&self) -> String {
        let stripes: u64 = self.runs.iter().map(|run| run.stripes).sum();
        let mut text = format!(
            "{}: {} in {} of {} + {} columns\n",
            self.path,
            Size(self.size),
            output::many(stripes, "stripe"),
            self.data,
            self.parity
        );
        let lines: Vec<&[MemberShown]> = match self.members.is_empty() {
            true => vec![&[]],
            false => self.members.chunks(LINE_MEMBERS).collect(),
        };
        for members in lines {
            text += &heads(members);
            for run in &self.runs {
                let count = match run.lies {
                    "stripes" => run.stripes.to_string(),
                    lies => lies.to_owned(),
                };
                let marks: String = members.iter().map(|member| run.mark(member.member, self.data)).collect();
                let line =
                    format!("{:>10} {:>10} {count:>7}  {marks}", Size(run.from).to_string(), Size(run.to).to_string());
                text += line.trim_end();
                text.push('\n');
            }
        }
        text + &self.legend()
    }

    fn legend(&self) -> String {
        let mut used: BTreeMap<char, &str> = BTreeMap::new();
        for run in &self.runs {
            for column in &run.columns {
                let (mark, meaning) = match (column.held, column.is_parity) {
                    (Held::Missing, _) => ('x', "x: missing"),
                    (Held::Empty, _) => ('-', "-: would be zeroes, and is not stored"),
                    (Held::There, true) => ('P', "P, Q, …: parity"),
                    (Held::There, false) => ('0', "0, 1, …: data"),
                };
                used.insert(mark, meaning);
            }
        }
        if !used.is_empty() {
            used.insert('~', ".: nothing of it");
        }
        let mut meanings: Vec<&str> = used.into_values().collect();
        if self.members.iter().any(|member| !member.is_reached) {
            meanings.push("!: the member is not reached");
        }
        meanings.join("; ")
    }
}

/// The numbers of members, one above the other, and a mark below those that are not reached.
fn heads(members: &[MemberShown]) -> String {
    let digits = members.iter().map(|member| member.member.to_string().len()).max().unwrap_or(0);
    let mut text = String::new();
    for row in 0..digits {
        let digit = |member: &MemberShown| format!("{:>digits$}", member.member).chars().nth(row).unwrap_or(' ');
        let numbers: String = members.iter().map(digit).collect();
        let left =
            if row + 1 == digits { format!("{:>10} {:>10} {:>7}", "from", "to", "stripes") } else { String::new() };
        text += &format!("{left:<29}  {numbers}\n");
    }
    if members.iter().any(|member| !member.is_reached) {
        let marks: String = members.iter().map(|member| if member.is_reached { ' ' } else { '!' }).collect();
        text += format!("{:<29}  {marks}", "").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_tells_data_from_parity_and_what_is_missing() {
        let column = |member, column, held| Column { member, region: 7, column, is_parity: column >= 2, held };
        let run =
            |from: u64, lies, stripes, columns| Run { from, to: from + 4096, lies, chunk: None, stripes, columns };
        let runs = vec![
            run(
                0,
                "stripes",
                3,
                vec![column(3, 0, Held::There), column(12, 1, Held::There), column(0, 2, Held::There)],
            ),
            run(4096, "hole", 0, vec![]),
            run(
                8192,
                "stripes",
                1,
                vec![column(0, 0, Held::There), column(4, 1, Held::Empty), column(3, 2, Held::Missing)],
            ),
        ];
        let member = |member| MemberShown {
            member,
            place: "h:1".into(),
            domain: "a".into(),
            is_reached: member != 4,
            is_out: false,
        };
        let members = [0, 3, 4, 12].map(member).into();
        let picture = Picture { path: "t:a".into(), size: 12288, data: 2, parity: 1, members, runs };
        let expected = "\
t:a: 12 KiB in 4 stripes of 2 + 1 columns
                                  1
      from         to stripes  0342
                                 !
       0 B      4 KiB       3  P0.1
     4 KiB      8 KiB    hole  ....
     8 KiB     12 KiB       1  0x-.
-: would be zeroes, and is not stored; 0, 1, …: data; P, Q, …: parity; x: missing; .: nothing of it; !: the member is not reached";
        assert_eq!(picture.text(), expected);
        let wide = Picture { members: (0..60).map(member).collect(), runs: Vec::new(), ..picture };
        assert!(wide.text().lines().filter(|line| !line.contains(':')).all(|line| line.len() <= 80), "{}", wide.text());
    }
}
