//! `yagura nvme identify` and `id-ns`: what a controller and a namespace say of themselves, in words.

use fabric::host::RemoteNamespace;
use nvme::identify::{IdentifyController, IdentifyNamespace, oncs};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::connect;
use crate::cli::NvmeIdentifyArgs;
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// A field of an Identify page: the specification's name, its value, and what that means.
struct Field {
    name: &'static str,
    value: Value,
    words: String,
}

fn field(name: &'static str, value: impl Into<Value>, words: impl Into<String>) -> Field {
    Field { name, value: value.into(), words: words.into() }
}

/// The names of the bits that are set.
fn bits(value: u64, names: &[(u32, &str)]) -> String {
    let set: Vec<_> = names.iter().filter(|(bit, _)| value >> bit & 1 != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(", ") }
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches([' ', '\0']).to_owned()
}

/// A zero based number of blocks.
fn blocks(zero_based: u16) -> String {
    output::many(u64::from(zero_based) + 1, "block")
}

fn lines(fields: &[Field]) -> String {
    let line = |field: &Field| {
        let value = match &field.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let words = if field.words.is_empty() { String::new() } else { format!("  {}", field.words) };
        format!("{:<10} {value}{words}\n", field.name)
    };
    fields.iter().map(line).collect()
}

fn object(fields: &[Field]) -> Value {
    Value::Object(fields.iter().map(|field| (field.name.to_owned(), field.value.clone())).collect::<Map<_, _>>())
}

/// NVMe Base 2.0 figure 275.
fn controller_fields(page: &IdentifyController, page_bytes: u64) -> Vec<Field> {
    let version = page.ver.get();
    let mdts = match page.mdts {
        0 => "no limit of a transfer".to_owned(),
        power => format!("transfers up to {}", Size(page_bytes.checked_shl(power.into()).unwrap_or(u64::MAX))),
    };
    let kind =
        ["not reported", "I/O", "discovery", "administrative"].get(usize::from(page.cntrltype)).unwrap_or(&"reserved");
    let mut fields = vec![
        field("sn", text(&page.sn), "serial number"),
        field("mn", text(&page.mn), "model"),
        field("fr", text(&page.fr), "firmware"),
        field("cntlid", page.cntlid.get(), "controller"),
        field("cntrltype", page.cntrltype, *kind),
        field("ver", format!("{}.{}.{}", version >> 16, version >> 8 & 0xFF, version & 0xFF), "version"),
        field("subnqn", text(&page.subnqn), ""),
        field("mdts", page.mdts, mdts),
        field(
            "cmic",
            page.cmic,
            bits(page.cmic.into(), &[(0, "several ports"), (1, "several controllers"), (3, "ANA")]),
        ),
        field(
            "oaes",
            page.oaes.get(),
            bits(
                page.oaes.get().into(),
                &[(8, "namespace attributes"), (9, "firmware activation"), (11, "ANA change"), (31, "discovery log")],
            ),
        ),
        field(
            "ctratt",
            page.ctratt.get(),
            bits(page.ctratt.get().into(), &[(0, "128-bit host identifier"), (6, "traffic based keep alive")]),
        ),
        field(
            "oacs",
            page.oacs.get(),
            bits(
                page.oacs.get().into(),
                &[(0, "security"), (1, "format"), (2, "firmware"), (3, "namespace management")],
            ),
        ),
    ];
    fields.extend(command_fields(page));
    fields
}

fn command_fields(page: &IdentifyController) -> Vec<Field> {
    let commands: [(u16, &str); 9] = [
        (oncs::COMPARE, "Compare"),
        (oncs::WRITE_UNCORRECTABLE, "Write Uncorrectable"),
        (oncs::DATASET_MANAGEMENT, "Dataset Management"),
        (oncs::WRITE_ZEROES, "Write Zeroes"),
        (oncs::SAVE_SELECT, "Save and Select"),
        (oncs::RESERVATIONS, "reservations"),
        (oncs::TIMESTAMP, "Timestamp"),
        (oncs::VERIFY, "Verify"),
        (oncs::COPY, "Copy"),
    ];
    let commands = commands.map(|(bit, name)| (bit.trailing_zeros(), name));
    let capsule = u64::from(page.ioccsz.get()) * 16;
    vec![
        field("acl", page.acl, format!("{} aborts at a time", u32::from(page.acl) + 1)),
        field("aerl", page.aerl, format!("{} event requests at a time", u32::from(page.aerl) + 1)),
        field("lpa", page.lpa, bits(page.lpa.into(), &[(0, "SMART per namespace"), (1, "effects"), (2, "offsets")])),
        field("elpe", page.elpe, format!("{} error log entries", u32::from(page.elpe) + 1)),
        field("kas", page.kas.get(), format!("keep alive in steps of {} ms", u32::from(page.kas.get()) * 100)),
        field("anatt", page.anatt, format!("an ANA transition takes up to {} s", page.anatt)),
        field("anagrpmax", page.anagrpmax.get(), "highest ANA group"),
        field("nanagrpid", page.nanagrpid.get(), "ANA groups"),
        field("maxcmd", page.maxcmd.get(), "commands of a queue; 0: as its entries"),
        field("nn", page.nn.get(), "highest namespace identifier"),
        field("oncs", page.oncs.get(), bits(page.oncs.get().into(), &commands)),
        field("fuses", page.fuses.get(), bits(page.fuses.get().into(), &[(0, "Compare and Write")])),
        field("vwc", page.vwc, bits(page.vwc.into(), &[(0, "volatile write cache")])),
        field("awun", page.awun.get(), format!("writes of {} are atomic", blocks(page.awun.get()))),
        field("awupf", page.awupf.get(), format!("of {} at a power failure", blocks(page.awupf.get()))),
        field("acwu", page.acwu.get(), format!("compare and write of {}", blocks(page.acwu.get()))),
        field(
            "ioccsz",
            page.ioccsz.get(),
            format!("{} of data in a command capsule", Size(capsule.saturating_sub(64))),
        ),
        field("sgls", page.sgls.get(), ""),
    ]
}

/// NVM Command Set 1.0 figure 97.
fn namespace_fields(page: &IdentifyNamespace) -> Vec<Field> {
    let format = page.lbaf[usize::from(page.flbas & 0xF | (page.flbas >> 1) & 0x30)];
    let block = 1u64.checked_shl(format.lbads.into()).unwrap_or(0);
    let size = |blocks: u64| Size(blocks.saturating_mul(block)).to_string();
    let features =
        [(0, "thin"), (1, "atomicity of its own"), (2, "deallocated blocks are errors"), (4, "preferred sizes")];
    let reads = ["not reported", "zeroes", "ones"].get(usize::from(page.dlfeat & 7)).unwrap_or(&"reserved");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    vec![
        field("nsze", page.nsze.get(), size(page.nsze.get())),
        field("ncap", page.ncap.get(), size(page.ncap.get())),
        field("nuse", page.nuse.get(), size(page.nuse.get())),
        field("nsfeat", page.nsfeat, bits(page.nsfeat.into(), &features)),
        field("nlbaf", page.nlbaf, format!("{} formats", u32::from(page.nlbaf) + 1)),
        field("flbas", page.flbas, format!("blocks of {block} bytes, {} bytes of metadata", format.ms)),
        field("mc", page.mc, ""),
        field("dpc", page.dpc, "protection offered"),
        field("dps", page.dps, "protection in use"),
        field("nmic", page.nmic, bits(page.nmic.into(), &[(0, "shared by several controllers")])),
        field(
            "rescap",
            page.rescap,
            bits(
                page.rescap.into(),
                &[
                    (0, "persist through power loss"),
                    (1, "write exclusive"),
                    (2, "exclusive access"),
                    (3, "write exclusive, registrants only"),
                    (4, "exclusive access, registrants only"),
                    (5, "write exclusive, all registrants"),
                    (6, "exclusive access, all registrants"),
                ],
            ),
        ),
        field("fpi", page.fpi, ""),
        field("dlfeat", page.dlfeat, format!("deallocated blocks read as {reads}")),
        field("nawun", page.nawun.get(), format!("writes of {} are atomic", blocks(page.nawun.get()))),
        field("nawupf", page.nawupf.get(), format!("of {} at a power failure", blocks(page.nawupf.get()))),
        field("nacwu", page.nacwu.get(), format!("compare and write of {}", blocks(page.nacwu.get()))),
        field("nabsn", page.nabsn.get(), ""),
        field("nabo", page.nabo.get(), ""),
        field("nabspf", page.nabspf.get(), ""),
        field("noiob", page.noiob.get(), "optimal I/O boundary, blocks; 0: none"),
        field("npwg", page.npwg.get(), format!("writes of {} preferred", blocks(page.npwg.get()))),
        field("npwa", page.npwa.get(), format!("aligned to {}", blocks(page.npwa.get()))),
        field("npdg", page.npdg.get(), format!("deallocation of {} preferred", blocks(page.npdg.get()))),
        field("npda", page.npda.get(), format!("aligned to {}", blocks(page.npda.get()))),
        field("nows", page.nows.get(), format!("optimal write of {}", blocks(page.nows.get()))),
        field("anagrpid", page.anagrpid.get(), "ANA group; 0: none"),
        field("nsattr", page.nsattr, bits(page.nsattr.into(), &[(0, "write protected")])),
        field("nguid", hex(&page.nguid), ""),
        field("eui64", hex(&page.eui64), ""),
    ]
}

/// `identify`: keys that have been there from the start stand beside the controller's page.
#[derive(Serialize)]
struct Identified {
    name: String,
    nguid: String,
    block_size: u32,
    blocks: u64,
    bytes: u64,
    transfer_blocks_max: u32,
    atomic_blocks: u32,
    compare_and_write_blocks_max: u32,
    volatile_cache: bool,
    deallocated_reads_zero: bool,
    namespaces: Vec<u32>,
    controller: Value,
}

fn lost(remote: &RemoteNamespace) -> Failure {
    let reason = remote.last_error().unwrap_or_else(|| "the connection was lost".to_owned());
    Failure::unavailable(format!("{}: {reason}", remote.name()))
}

/// `yagura nvme identify`
pub async fn controller(args: &NvmeIdentifyArgs) -> Result<(), Failure> {
    let remote = connect(&args.namespace).await?;
    let info = device::Namespace::info(&remote);
    let page = remote.controller().ok_or_else(|| lost(&remote))?;
    let namespaces = remote.namespaces().await.map_err(Failure::unavailable)?;
    let fields = controller_fields(&page, 4096);
    let identified = Identified {
        name: remote.name().to_string(),
        nguid: format!("{:032x}", u128::from_be_bytes(info.nguid)),
        block_size: info.block_size,
        blocks: info.blocks,
        bytes: info.bytes(),
        transfer_blocks_max: info.transfer_blocks_max,
        atomic_blocks: info.atomic_blocks,
        compare_and_write_blocks_max: info.compare_and_write_blocks_max,
        volatile_cache: info.volatile_cache,
        deallocated_reads_zero: info.deallocated_reads_zero,
        namespaces,
        controller: object(&fields),
    };
    remote.disconnect().await;
    output::report(args.common.json, &identified, |found| {
        let atomic = match found.compare_and_write_blocks_max {
            0 => "no fused compare and write: cannot be a pool's member".into(),
            blocks => format!("compare and write up to {}", output::many(blocks.into(), "block")),
        };
        let (size, namespaces) = (Size(found.bytes), &found.namespaces);
        format!(
            "{}\n{size}: {} of {} bytes\nnguid {}\n{atomic}\nnamespaces {namespaces:?}\n\n{}",
            found.name,
            output::many(found.blocks, "block"),
            found.block_size,
            found.nguid,
            lines(&fields)
        )
    })
}

/// `yagura nvme id-ns`
pub async fn namespace(args: &NvmeIdentifyArgs) -> Result<(), Failure> {
    let remote = connect(&args.namespace).await?;
    let page = remote.identify().await.map_err(Failure::unavailable)?;
    let fields = namespace_fields(&page);
    let (name, ana) = (remote.name().to_owned(), remote.ana_state().map(|state| state.to_string()));
    remote.disconnect().await;
    let formats: Vec<_> = page.lbaf[..=usize::from(page.nlbaf).min(page.lbaf.len() - 1)]
        .iter()
        .map(|format| json!({ "ms": format.ms.get(), "lbads": format.lbads, "rp": format.rp }))
        .collect();
    let mut report = object(&fields);
    report["name"] = name.clone().into();
    report["ana"] = ana.clone().into();
    report["lbaf"] = formats.into();
    output::report(args.common.json, &report, |_| {
        let ana = ana.map_or_else(String::new, |state| format!("this path is {state}\n"));
        format!("{name}\n{ana}{}", lines(&fields))
    })
}
