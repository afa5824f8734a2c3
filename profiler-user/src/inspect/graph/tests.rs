//! Files that are made up: one of which everything is known, and many of random bytes.

pub(crate) mod made;

use super::*;
use crate::inspect::insn::KernelRules;
use made::{ALLOC, EXEC, Made, WRITE};
use profiler_core::graph::{CallSite, Edge, EdgeKind, Origin};
use rand::{RngExt, SeedableRng};

fn rules() -> KernelRules {
    KernelRules::for_version(6, 18)
}

const TEXT: u64 = 0x40_1000;
const PLT: u64 = 0x40_2000;
const GOT: u64 = 0x40_3000;
const DATA: u64 = 0x40_4000;
const TABLE: u64 = 0x40_5000;

/// An instruction with a displacement of four bytes at its end.
fn relative(opcode: &[u8], at: u64, to: u64) -> Vec<u8> {
    let next = at + opcode.len() as u64 + 4;
    let mut bytes = opcode.to_vec();
    bytes.extend((to.wrapping_sub(next) as u32).to_le_bytes());
    bytes
}

const CALL: &[u8] = &[0xe8];
const JMP: &[u8] = &[0xe9];
const JNE: &[u8] = &[0x0f, 0x85];
const LEA_RAX: &[u8] = &[0x48, 0x8d, 0x05];
const CALL_SLOT: &[u8] = &[0xff, 0x15];
const JMP_SLOT: &[u8] = &[0xff, 0x25];
const MOV_RAX_SLOT: &[u8] = &[0x48, 0x8b, 0x05];

/// Code at an address, put together piece by piece.
struct Code(u64, Vec<u8>);

impl Code {
    fn at(&self) -> u64 {
        self.0 + self.1.len() as u64
    }

    fn to(mut self, opcode: &[u8], to: u64) -> Self {
        let bytes = relative(opcode, self.at(), to);
        self.1.extend(bytes);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.1.extend(bytes);
        self
    }

    /// Nops up to an offset.
    fn pad(mut self, offset: u64) -> Self {
        assert!(self.1.len() as u64 <= offset);
        self.1.resize(offset as usize, 0x90);
        self
    }
}

/// `main` at +0, `g` at +0x100, its cold part at +0x200, `ways` at +0x300, a function that only unwind data could tell of at +0x400, `sizeless`
/// at +0x500, a cold part that nobody jumps to at +0x600, `chosen` (IFUNC) at +0x700.
fn known() -> Made {
    let t = |offset: u64| TEXT + offset;
    let code = Code(TEXT, Vec::new())
        .to(CALL, t(0x100))
        .to(CALL, PLT + 16)
        .to(CALL_SLOT, GOT + 8)
        .to(LEA_RAX, t(0x300))
        .to(MOV_RAX_SLOT, GOT + 8)
        .bytes(&[0xff, 0xd0]) // call rax
        .bytes(&[0xff, 0x50, 0x18]) // call [rax+0x18]
        .to(CALL, t(0x400))
        .to(CALL, t(0x104))
        .to(JMP, t(0x500))
        .pad(0x100)
        // g: a loop, then out to its cold part
        .bytes(&[0x55, 0x90, 0x90, 0x90, 0x90])
        .to(JNE, t(0x101))
        .to(JNE, t(0x200))
        .bytes(&[0x5d, 0xc3])
        .pad(0x200)
        // g.cold: calls abort, which does not return
        .to(CALL, PLT)
        .to(JMP, t(0x101))
        .pad(0x300)
        // ways: cmp edi, 1; ja +; lea; movsxd; add; jmp rax
        .bytes(&[0x83, 0xff, 0x01, 0x77, 0x11])
        .to(&[0x48, 0x8d, 0x15], TABLE)
        .bytes(&[0x48, 0x63, 0x04, 0xba, 0x48, 0x01, 0xd0, 0xff, 0xe0])
        .bytes(&[0x90, 0xc3])
        .to(JMP_SLOT, GOT + 24)
        .pad(0x400)
        .bytes(&[0x55, 0x5d, 0xc3])
        .pad(0x500)
        .bytes(&[0x31, 0xc0, 0xff, 0xe0]) // xor eax, eax; jmp rax
        .pad(0x600)
        .bytes(&[0x55, 0xc3])
        .pad(0x700)
        .bytes(&[0x55, 0x5d, 0xc3]);
    let table: Vec<u8> =
        [0x315, 0x316].iter().flat_map(|o| (t(*o).wrapping_sub(TABLE) as u32).to_le_bytes()).collect();
    let plt = Code(PLT, Vec::new()).to(JMP_SLOT, GOT).pad(16).to(JMP_SLOT, GOT + 16);
    let mut made = Made::new(3);
    made.section(".text", ALLOC | EXEC, TEXT, &code.1);
    made.section(".plt", ALLOC | EXEC, PLT, &plt.1);
    made.section(".got", ALLOC | WRITE, GOT, &[0; 32]);
    made.section(".data", ALLOC | WRITE, DATA, &[0; 32]);
    made.section(".rodata", ALLOC, TABLE, &table);
    made.imports(&["abort", "puts", "open"]);
    for (name, offset, size, kind) in [
        ("main", 0, 0x60, 2),
        ("g", 0x100, 0x20, 2),
        ("g_alias", 0x100, 0x20, 2),
        ("g.cold", 0x200, 10, 2),
        ("ways", 0x300, 0x30, 2),
        ("sizeless", 0x500, 0, 2),
        ("lone.cold", 0x600, 2, 2),
        ("chosen", 0x700, 3, 10),
    ] {
        made.symbol(name, t(offset), size, kind);
    }
    // JUMP_SLOT abort, GLOB_DAT open, JUMP_SLOT puts, IRELATIVE chosen, RELATIVE ways
    made.relocations(&[
        (GOT, 7, 1, 0),
        (GOT + 8, 6, 3, 0),
        (GOT + 16, 7, 2, 0),
        (GOT + 24, 37, 0, t(0x700)),
        (DATA, 8, 0, t(0x300)),
        (DATA + 8, 8, 0, t(0x301)),
    ]);
    made
}

struct Known {
    graph: CallGraph,
}

impl Known {
    fn read() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known");
        known().write(&path);
        Self { graph: CallGraph::of(&path, rules()).unwrap() }
    }

    fn id(&self, name: &str) -> NodeId {
        let found = self.graph.find(&Pattern::parse(name).unwrap());
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found[0]
    }

    fn name(&self, id: NodeId) -> &str {
        &self.graph.graph.node(id).unwrap().symbol
    }

    /// Offset, callee, transfer, way.
    fn sites(&self, name: &str) -> Vec<(u64, String, Transfer, Way)> {
        let of = |s: &CallSite| {
            let callee = s.to.map_or("?", |to| self.name(to));
            let inside = if s.inside { "+" } else { "" };
            (s.at - TEXT, format!("{callee}{inside}"), s.transfer, s.way)
        };
        self.graph.graph.sites(self.id(name)).iter().map(of).collect()
    }
}

#[test]
fn every_call_site_of_a_made_up_file_is_found() {
    let known = Known::read();
    use Transfer::{Call, Jump};
    use Way::{Direct, Got, Memory, Plt, Register};
    let site = |at, to: &str, transfer, way| (at, to.to_owned(), transfer, way);
    assert_eq!(
        known.sites("main"),
        [
            site(0, "g", Call, Direct),
            site(5, "puts", Call, Plt),
            site(10, "open", Call, Got),
            site(30, "?", Call, Register),
            site(32, "?", Call, Memory),
            site(35, "0x401400", Call, Direct),
            site(40, "g+", Call, Direct),
            site(45, "sizeless", Jump, Direct),
        ]
    );
    assert_eq!(known.sites("g"), [site(0x200, "abort", Call, Plt)], "the part is its own");
    assert_eq!(
        known.sites("ways"),
        [site(0x317, "chosen", Jump, Got)],
        "entries of the table are no callees"
    );
    assert_eq!(known.sites("sizeless"), [site(0x502, "?", Jump, Register)]);
    let graph = &known.graph.graph;
    let main = known.id("main");
    let taken: Vec<_> = graph.taken(main).iter().map(|t| (t.at - TEXT, known.name(t.node))).collect();
    assert_eq!(taken, [(16, "ways"), (23, "open")]);
    let kinds = |edge: &Edge| {
        (known.name(edge.node).to_owned(), edge.kinds.iter().map(EdgeKind::name).collect::<Vec<_>>())
    };
    let edges: Vec<_> = graph.callees(main).map(kinds).collect();
    assert_eq!(edges[2], ("open".to_owned(), vec!["got", "taken"]));
    // A call is emulated as a branch; behind it stands another one.
    let first = graph.sites(main)[0];
    assert_eq!(first.class.map(|c| c.name()), Some("branch"));
    assert_eq!(first.return_class.map(|c| c.name()), Some("branch"));
}

#[test]
fn functions_of_a_made_up_file_say_what_they_are() {
    let known = Known::read();
    let node = |name: &str| known.graph.graph.node(known.id(name)).unwrap();
    assert_eq!((node("g").symbol.as_str(), node("g").aliases.as_slice()), ("g", &["g_alias".to_owned()][..]));
    assert_eq!(node("g").ranges, [TEXT + 0x100..TEXT + 0x120, TEXT + 0x200..TEXT + 0x20a]);
    assert!(node("ways").held && !node("g").held, "0x301 is no start");
    assert!(node("sizeless").guessed_size && node("sizeless").size() == 0x100);
    assert_eq!(node("sizeless").facts.unresolved_jumps, 1);
    assert!(node("chosen").ifunc && node("chosen").entry);
    assert!(node("abort").is_import());
    let gap = known.graph.graph.at(TEXT + 0x400).unwrap();
    assert_eq!(known.graph.graph.node(gap).unwrap().origin, Origin::Gap);
    let lone = known.graph.graph.at(TEXT + 0x600).unwrap();
    assert!(known.graph.graph.node(lone).unwrap().lone_part);
    // The way back from the cold part comes behind a call that does not return: one loop, not two.
    let loops = known.graph.graph.loops(known.id("g")).unwrap();
    let told: Vec<_> =
        loops.loops.iter().map(|l| (l.header - TEXT, l.back_edges[0] - TEXT, l.depth)).collect();
    assert_eq!((told, loops.irreducible.len(), loops.uncertain), (vec![(0x101, 0x105, 1)], 0, false));
    assert_eq!(loops.loops[0].body, std::slice::from_ref(&(TEXT + 0x101..TEXT + 0x10b)));
}

#[test]
fn loops_are_those_of_the_functions_that_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("known");
    known().write(&path);
    let of = |offset: u64| {
        let found = CallGraph::with_loops_of(&path, rules(), &BTreeSet::from([TEXT + offset])).unwrap();
        found
            .graph
            .all_loops()
            .map(|(id, _)| found.graph.node(id).unwrap().symbol.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!((of(0x100), of(0)), (vec!["g".to_owned()], vec![]));
}

#[test]
fn what_names_nothing_has_similar_names() {
    let known = Known::read();
    let why = |pattern: &str| known.graph.why_nothing(&Pattern::parse(pattern).unwrap());
    assert_eq!(why("sizless"), "'sizless': no function of known has such a name; similar: sizeless");
    assert_eq!(why("libc:f"), "'libc:f': the file is 'known', and the pattern names another module");
    assert!(
        known.graph.find(&Pattern::parse("known:puts").unwrap()).is_empty(),
        "an import is another module's"
    );
}

/// Symbols, relocations, unwind data and code of random bytes: no panic, and what comes out holds together.
#[test]
fn random_bytes_make_a_graph_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("random");
    let (mut graphs, mut sites) = (0, 0);
    for seed in 0..300 {
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        let mut bytes = |most: usize| -> Vec<u8> {
            let len = rng.random_range(0..most);
            // Branches are more frequent than chance has them.
            let often = [0xe8, 0xe9, 0xeb, 0xff, 0x74, 0x0f, 0x48, 0x8d, 0x05, 0xc3, 0, 0];
            (0..len)
                .map(|_| {
                    if rng.random_bool(0.4) { often[rng.random_range(0..often.len())] } else { rng.random() }
                })
                .collect()
        };
        let mut made = Made::new(if seed % 2 == 0 { 2 } else { 3 });
        made.section(".text", ALLOC | EXEC, TEXT, &bytes(4096));
        made.section(".plt", ALLOC | EXEC, PLT, &bytes(512));
        made.section(".got", ALLOC | WRITE, GOT, &bytes(64));
        made.section(".relr.dyn", ALLOC, DATA, &bytes(256));
        made.section(".rodata", ALLOC, TABLE, &bytes(256));
        let header = [&[1, 0x1b, 3, 0x3b][..], &bytes(600)].concat();
        made.section(".eh_frame_hdr", ALLOC, TABLE + 0x1000, &header);
        made.section(".eh_frame", ALLOC, TABLE + 0x2000, &bytes(600));
        made.imports(&["a", "", "b"]);
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        for i in 0..rng.random_range(0..60) {
            let name = ["f", "f.cold", "__x86_indirect_thunk_rax", "_ZN1fEv", "\u{202e}"][i % 5];
            let at = TEXT.wrapping_add_signed(rng.random_range(-64..4200_i64));
            let size = if rng.random_bool(0.1) { rng.random() } else { rng.random_range(0..300) };
            made.symbol(&format!("{name}{}", i / 5), at, size, if i % 7 == 0 { 10 } else { 2 });
        }
        let relocation = |_| {
            let at = GOT.wrapping_add(8 * rng.random_range(0..9_u64));
            (at, rng.random_range(0..40), rng.random_range(0..6), TEXT + rng.random_range(0..4200_u64))
        };
        made.relocations(&(0..20).map(relocation).collect::<Vec<_>>());
        made.write(&path);
        let Ok(call_graph) = CallGraph::of(&path, rules()) else { continue };
        let graph = &call_graph.graph;
        graphs += 1;
        for (id, node) in graph.nodes() {
            sites += graph.sites(id).len();
            for site in graph.sites(id) {
                assert!(node.contains(site.at), "seed {seed}: {site:?} of {node:?}");
                assert!(site.to.is_none_or(|to| graph.node(to).is_some()));
            }
            for natural in graph.loops(id).into_iter().flat_map(|loops| &loops.loops) {
                assert!(natural.body.iter().all(|body| node.contains(body.start)), "seed {seed}");
            }
        }
        assert!(graph.totals().functions > 0 || graph.nodes().all(|(_, node)| node.is_import()));
    }
    assert!(graphs > 200 && sites > 5_000, "{graphs} graphs with {sites} call sites");
}

#[test]
fn files_without_a_graph_say_why_and_what_mends_it() {
    let dir = tempfile::tempdir().unwrap();
    let why = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = CallGraph::of(&path, rules()).unwrap_err().to_string();
        error.replace(&dir.path().display().to_string(), "DIR")
    };
    let mut object = b"\x7fELF\x02\x01\x01".to_vec();
    object.resize(64, 0);
    object[16] = 1;
    let mut core = object.clone();
    core[16] = 4;
    // A table of ten sections at 4096.
    let mut cut = object.clone();
    (cut[16], cut[18], cut[41], cut[58], cut[60]) = (3, 62, 0x10, 64, 10);
    let mut narrow = cut.clone();
    narrow[4] = 1;
    let mut arm = cut.clone();
    arm[18] = 183;
    let texts = [
        why("script", b"#!/usr/bin/env -S python3 -u\nprint()"),
        why("shell", b"#! /bin/sh\n"),
        why("text", b"hello"),
        why("empty", b""),
        why("object.o", &object),
        why("core", &core),
        why("cut", b"\x7fELF\x02"),
        why("cut-later", &cut),
        why("32-bit", &narrow),
        why("arm", &arm),
    ];
    expect_test::expect![[r#"
        DIR/script is a script for 'python3', not machine code: name the interpreter's program instead (`readlink -f "$(command -v python3)"`), or the library that the script loads
        DIR/shell is a script for '/bin/sh', not machine code: name the interpreter's program instead (`readlink -f "$(command -v /bin/sh)"`), or the library that the script loads
        DIR/text is no ELF file: it begins with 68 65 6c 6c, not with 7f 45 4c 46; `file DIR/text` says what it is; programs and shared libraries for Linux on x86-64 can be read
        DIR/empty is no ELF file: it begins with nothing (it is empty), not with 7f 45 4c 46; `file DIR/empty` says what it is; programs and shared libraries for Linux on x86-64 can be read
        DIR/object.o is an object file that is not linked (ELF type 1): its calls lead nowhere before the linker has filled them in; name the program or library that it is linked into
        DIR/core is a core dump (ELF type 4): name the program that it is of (`file DIR/core` says which)
        DIR/cut is cut or damaged: its ELF header speaks of 64 bytes, and the file has 5; copy or download it again
        DIR/cut-later is cut or damaged: its ELF header speaks of 4736 bytes, and the file has 64; copy or download it again
        DIR/32-bit is a 32-bit ELF file, and only machine code for x86-64 is decoded; `file DIR/32-bit` says more
        DIR/arm is made for ELF machine 183, and only machine code for x86-64 is decoded; `file DIR/arm` says more"#]]
    .assert_eq(&texts.join("\n"));
    let path = dir.path().join("debug");
    let mut made = Made::new(3);
    made.without_bytes(".text", ALLOC | EXEC, TEXT, 100);
    made.write(&path);
    let error = CallGraph::of(&path, rules()).unwrap_err().to_string();
    assert!(error.contains("debug has no code: its code sections have no bytes"), "{error}");
    let error = file_of(Path::new("no-such-library.so.9")).unwrap_err().to_string();
    assert!(error.starts_with("cannot find 'no-such-library.so.9': no file has this name"), "{error}");
    assert_eq!(file_of(Path::new("./x")).unwrap(), Path::new("./x"));
    assert!(file_of(Path::new("sh")).unwrap().is_file());
}
