//! USDT probes as bounds: a class for each place of a probe.

use super::super::Agent;
use super::super::class::OperationRole;
use super::super::shares::FunctionKey;
use crate::config::ClassArgument;
use crate::inspect::{ProbeSite, register_argument};
use crate::prober::operation::{ARGUMENT_SLICE, ARGUMENT_STRING};
use crate::prober::register_word;
use profiler_core::class::{ClassId, ExitMode, RecordKind};
use profiler_core::cost::Price;
use profiler_core::run::view::ClassPrices;

/// Places that one probe may have.
const MOST_PLACES: usize = 64;

impl Agent {
    /// Classes of all places of a probe. `class`: the argument that is read there.
    pub(super) fn probe_classes(
        &mut self,
        provider: &str,
        name: &str,
        role: OperationRole,
        class: Option<ClassArgument>,
    ) -> Result<Vec<ClassId>, String> {
        let places = self.inspection.usdt(provider, name)?;
        if places.len() > MOST_PLACES {
            return Err(format!(
                "it was inlined in {} places; at most {MOST_PLACES} bound an operation",
                places.len()
            ));
        }
        let several = places.len() > 1;
        places
            .iter()
            .map(|place| {
                let at = |why: String| {
                    if several { format!("its place {:#x}: {why}", place.function.vaddr) } else { why }
                };
                let arguments = class.map_or(Ok([0; 2]), |class| argument_words(place, class)).map_err(at)?;
                self.probe_class(place, role, arguments).map_err(at)
            })
            .collect()
    }

    fn probe_class(
        &mut self,
        place: &ProbeSite,
        role: OperationRole,
        arguments: [u32; 2],
    ) -> Result<ClassId, String> {
        let key = FunctionKey { module: place.function.module, address: place.function.vaddr };
        self.may_be(key, role)?;
        let wish = self.apart_wish(&place.function, RecordKind::Count, 0);
        let id = self.add_class_at(&place.function, key, wish, place.sites.clone())?;
        // Priced as a call that is recorded, which does about as much in the kernel.
        let candidate = self.attach.class(id).candidate.clone();
        let prices = self.prices(&candidate, RecordKind::Record, ExitMode::None);
        let class = self.attach.class_mut(id);
        class.role = Some(role);
        class.kind = RecordKind::Record;
        class.wish.kind = RecordKind::Record;
        class.prices = ClassPrices { exit: Price::fixed(0.0), ..prices };
        class.candidate.semaphore_offset = place.semaphore_offset;
        class.candidate.arguments = arguments;
        self.attach.join(id);
        Ok(id)
    }
}

/// Where the argument that names the class lies at a place, and the one behind it if it is read, too.
fn argument_words(place: &ProbeSite, class: ClassArgument) -> Result<[u32; 2], String> {
    let word = |k: u32, pointer: bool| {
        let text = place.arguments.get(k as usize).ok_or_else(|| match place.arguments.len() {
            0 => format!("there is no argument {k}: the probe has none"),
            n => format!("there is no argument {k}: the probe has {n} ({})", place.arguments.join(" ")),
        })?;
        let found = register_argument(text).map_err(|why| format!("argument {k}: {why}"))?;
        if pointer && found.bytes != 8 {
            return Err(format!(
                "argument {k}: '{text}' has {} bytes and is no address; leave ':str' out to tell its values apart",
                found.bytes
            ));
        }
        Ok(register_word(found.offset, found.bytes, found.signed))
    };
    let slice = class.kind == ARGUMENT_SLICE;
    let first = word(class.index, slice || class.kind == ARGUMENT_STRING)?;
    Ok([first, if slice { word(class.index + 1, false)? } else { 0 }])
}
