//! From one function's code to what the graph is made of: where control leaves it, and whose addresses it takes.

use super::super::elf::ElfInfo;
use super::super::flow::{self, Edge, Region};
use super::super::insn::{self, KernelRules, Treatment};
use super::super::landing;
use super::code::{Code, Leads};
use super::functions::Functions;
use super::linkage::Linkage;
use iced_x86::{Instruction, Mnemonic, OpKind};
use profiler_core::class::SiteClass;
use profiler_core::graph::{Decoded, Facts, RawSite, Target, Transfer, Way};

/// What is known of the module around a function.
pub(super) struct Around<'a> {
    pub elf: &'a ElfInfo,
    pub functions: &'a Functions,
    pub linkage: &'a Linkage,
    pub rules: KernelRules,
}

impl Around<'_> {
    /// Finds the call sites of a function, and the addresses that it takes.
    pub fn decode(&self, code: &Code) -> Decoded {
        let mut decoded = Decoded { parts: code.parts().collect(), ..Decoded::default() };
        decoded.facts.undecoded_bytes = code.undecoded_bytes;
        for region in &code.regions {
            for (i, insn) in region.insns.iter().enumerate() {
                self.pass(code, region, i, insn, &mut decoded);
                self.take(insn, &mut decoded.taken);
            }
            self.fall(region, &mut decoded);
        }
        let facts = &mut decoded.facts;
        facts.may_loop |= !code.indirect.is_empty()
            || !code
                .regions
                .iter()
                .all(|r| landing::pads(self.elf, r.start).is_ok_and(|pads| pads.is_empty()));
        decoded
    }

    /// How one instruction passes control on.
    fn pass(&self, code: &Code, region: &Region, i: usize, insn: &Instruction, decoded: &mut Decoded) {
        let Facts { returns, may_loop, unresolved_jumps, .. } = &mut decoded.facts;
        let (transfer, to) = match flow::edge(insn) {
            Edge::Return => {
                *returns = true;
                return;
            }
            Edge::Call => (Transfer::Call, None),
            Edge::Indirect => (Transfer::Jump, None),
            edge @ (Edge::Jump(to) | Edge::Branch(to)) => {
                if code.contains(to) {
                    *may_loop |= to <= insn.ip();
                    // A jump to its own start is none to another function; to one that begins inside it is.
                    if !self.functions.begins(to) || code.regions.first().is_some_and(|r| r.start == to) {
                        return;
                    }
                }
                let branch = matches!(edge, Edge::Branch(_));
                (if branch { Transfer::Branch } else { Transfer::Jump }, Some(to))
            }
            Edge::Next | Edge::Stop | Edge::Other => return,
        };
        let near = insn.op0_kind() == OpKind::NearBranch64;
        let (way, to) = match to.or(near.then(|| insn.near_branch_target())) {
            Some(to) => match self.linkage.through_stub(to) {
                Some(target) => (Way::Plt, target),
                None => (Way::Direct, Target::Address(to)),
            },
            None => match self.linkage.through_slot(insn) {
                Some(target) => (Way::Got, target),
                None if insn.op0_kind() == OpKind::Register => (Way::Register, Target::Unknown),
                None => (Way::Memory, Target::Unknown),
            },
        };
        if transfer == Transfer::Jump && matches!(way, Way::Register | Way::Memory) {
            match code.leads(insn.ip()) {
                Leads::Inside(_) => return,
                Leads::Pointer(_) => {}
                Leads::Unknown => *unresolved_jumps += 1,
            }
        }
        let site = self.site(region, i, insn, transfer);
        decoded.sites.push(RawSite { way, to, ..site });
    }

    fn site(&self, region: &Region, i: usize, insn: &Instruction, transfer: Transfer) -> RawSite {
        let behind = region.insns.get(i + 1).filter(|next| next.ip() == insn.next_ip());
        let call = transfer == Transfer::Call;
        RawSite {
            at: insn.ip(),
            len: insn.len() as u8, // OK because no instruction has more than 15 bytes
            transfer,
            way: Way::Direct,
            to: Target::Unknown,
            class: self.class(region, insn),
            return_class: behind.filter(|_| call).and_then(|next| self.class(region, next)),
        }
    }

    /// The price class of a probe at an instruction; none where it may not be probed.
    fn class(&self, region: &Region, insn: &Instruction) -> Option<SiteClass> {
        match insn::treatment(region.bytes_of(insn), insn.ip(), self.rules) {
            Treatment::Probe(class) => Some(class),
            Treatment::Refused(_) => None,
        }
    }

    /// Notes what control runs into without a jump: functions that begin inside a region, and what begins where it ends.
    fn fall(&self, region: &Region, decoded: &mut Decoded) {
        let goes_on = |edge: Edge| matches!(edge, Edge::Next | Edge::Branch(_) | Edge::Other);
        let range = region.start..region.end();
        for start in self.functions.inside(&range) {
            let Some(before) = region.index_of(*start).and_then(|i| i.checked_sub(1)) else { continue };
            let Some(insn) = region.insns.get(before) else { continue };
            if insn.next_ip() == *start && (goes_on(flow::edge(insn)) || flow::edge(insn) == Edge::Call) {
                let site = self.site(region, before, insn, Transfer::Fall);
                decoded.sites.push(RawSite { to: Target::Address(*start), ..site });
            }
        }
        let padding = |insn: &&Instruction| matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        let code = region.insns.iter().rev().skip_while(padding).count();
        let Some((at, last)) = code.checked_sub(1).and_then(|at| Some((at, region.insns.get(at)?))) else {
            return;
        };
        // A call there does not return.
        if !goes_on(flow::edge(last)) || last.mnemonic() == Mnemonic::Hlt {
            return;
        }
        if self.functions.begins(range.end) {
            let site = self.site(region, at, last, Transfer::Fall);
            decoded.sites.push(RawSite { to: Target::Address(range.end), ..site });
        } else {
            decoded.facts.returns = true;
        }
    }

    /// Notes whose address an instruction takes: by `lea`, from a slot of the global offset table, or, in a program with a fixed address, as an
    /// immediate value.
    fn take(&self, insn: &Instruction, taken: &mut Vec<(u64, Target)>) {
        let branch =
            matches!(flow::edge(insn), Edge::Call | Edge::Indirect | Edge::Jump(_) | Edge::Branch(_));
        if branch || insn.op_count() == 0 {
            return;
        }
        if insn.is_ip_rel_memory_operand() {
            let at = insn.memory_displacement64();
            if insn.mnemonic() == Mnemonic::Lea {
                let stub = self.linkage.through_stub(at);
                taken.extend(stub.or_else(|| self.start(at)).map(|target| (insn.ip(), target)));
            } else if let Some(target) = self.linkage.through_slot(insn) {
                taken.push((insn.ip(), target));
            }
        }
        if self.elf.fixed_address {
            let wide = |i: u32| {
                use OpKind::{Immediate32, Immediate32to64, Immediate64};
                matches!(insn.op_kind(i), Immediate32 | Immediate32to64 | Immediate64)
                    .then(|| insn.immediate(i))
            };
            let values = (0..insn.op_count()).filter_map(wide);
            taken.extend(values.filter_map(|at| self.start(at)).map(|target| (insn.ip(), target)));
        }
    }

    /// An address, if a function may begin there.
    fn start(&self, at: u64) -> Option<Target> {
        (self.functions.begins(at) || self.elf.is_code(at)).then_some(Target::Address(at))
    }
}
