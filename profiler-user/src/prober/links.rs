//! Attaching groups of sites, and the links that hold them.
//!
//! A link is file descriptors and nothing else: closing them detaches, also when the agent is killed; nothing is
//! pinned. Closing blocks the caller for tens of milliseconds (an RCU grace period), hits stop earlier: in the order
//! of the sites, so put the hottest first.

use super::group::{AttachGroup, LinkKind, Site, SiteRole};
use super::object::{Flavour, Programs};
use super::sys::{self, MultiSites};
use super::{KernelError, Tier};
use profiler_common::cookie::{COOKIE_DISTANCE_SHIFT, COOKIE_RETURN_LINK, Cookie};
use profiler_core::class::ClassId;
use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An attachment. Dropping it detaches, and blocks until the kernel is done.
#[derive(Debug)]
pub struct Link {
    /// In the order in which they are to be closed, each with the number of its sites.
    parts: Vec<(OwnedFd, u32)>,
    sites: usize,
    registration_ns: u64,
}

impl Link {
    /// The file descriptors, to be closed in this order by a thread that may block.
    #[must_use]
    pub fn into_fds(self) -> Vec<OwnedFd> {
        self.parts.into_iter().map(|(fd, _)| fd).collect()
    }

    /// The same, each with the number of sites from which closing it takes the program.
    #[must_use]
    pub fn into_parts(self) -> Vec<(OwnedFd, u32)> {
        self.parts
    }

    /// CPU time that the kernel took to register its sites, ns. Waiting for grace periods is not in it.
    #[must_use]
    pub fn registration_ns(&self) -> u64 {
        self.registration_ns
    }

    /// Sites attached.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.sites
    }
}

/// A site that the kernel refused, and why.
#[derive(Debug)]
pub struct RefusedSite {
    /// The site.
    pub site: Site,
    /// The kernel's error; for the other sites of its class "another site of this class was refused".
    pub error: io::Error,
}

/// A group that is attached, with what had to be left out.
#[derive(Debug)]
pub struct Attached {
    /// The attachment of all sites that the kernel took.
    pub link: Link,
    /// Sites left out. A pair of which one site is refused is left out whole; of return sites each goes by itself.
    pub refused: Vec<RefusedSite>,
}

/// Why nothing of a group was attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No site in the group, or none of the role that its kind needs.
    #[error("nothing to attach in {module}: the group has no {missing} site")]
    Empty {
        /// The module.
        module: PathBuf,
        /// "entry", "exit" or "return".
        missing: &'static str,
    },
    /// The path has a NUL byte.
    #[error("the path {0:?} has a NUL byte")]
    Path(PathBuf),
    /// The program cannot be loaded.
    #[error(transparent)]
    Program(#[from] KernelError),
    /// The kernel refuses the whole group.
    #[error(
        "cannot attach {sites} sites of {module} in process {pid}: {source}; the process may have ended (kill -0 {pid}), or the file cannot be opened from here"
    )]
    Refused {
        /// The module.
        module: PathBuf,
        /// The process.
        pid: u32,
        /// Sites in the group.
        sites: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// Every site was refused by itself.
    #[error("every site of {module} was refused, the first (offset {offset:#x}) with: {source}")]
    AllRefused {
        /// The module.
        module: PathBuf,
        /// Offset of the first site.
        offset: u64,
        /// The kernel's error on it.
        source: io::Error,
    },
}

/// One link to create: a program on the sites of one role.
struct Part {
    program: &'static str,
    flavour: Flavour,
    role: SiteRole,
    /// On the return of the function at the (entry) site.
    returns: bool,
}

/// The links that a kind needs in a tier, in the order in which they are *created*. They are closed in the opposite order. Where a
/// class's quota is 0 meanwhile, no begin is seen whose end is missed, in whatever order; then it is the cost that matters: creating a link
/// takes 10 to 125 ms, of which the first site waits longest for the kernel, and the sites of the first link are hit while the second is
/// made. Exit sites are single-stepped (20 to 30 us a hit), entries mostly are not: exits last.
fn parts(kind: LinkKind, tier: Tier) -> Vec<Part> {
    use SiteRole::{Entry, Exit, Return};
    let plain = if tier == Tier::D { Flavour::PerfUprobe } else { Flavour::Multi };
    let part = |program, role, returns| Part { program, flavour: plain, role, returns };
    let session = |program| Part { program, flavour: Flavour::Session, role: Entry, returns: false };
    match (kind, tier) {
        (LinkKind::Count, _) => vec![part("count", Entry, false)],
        (LinkKind::Record, _) => vec![part("record", Entry, false)],
        (LinkKind::Step, _) => vec![part("step", Entry, false)],
        (LinkKind::OperationExits, _) => {
            vec![part("operation_begin", Entry, false), part("operation_end", Exit, false)]
        }
        (LinkKind::OperationReturn, _) => {
            vec![part("operation_end", Entry, true), part("operation_begin", Entry, false)]
        }
        (LinkKind::OperationBegin, _) => vec![part("operation_begin", Entry, false)],
        (LinkKind::OperationEnd, _) => vec![part("operation_end_function", Entry, false)],
        (LinkKind::Empty, _) => vec![part("empty", Entry, false)],
        (LinkKind::ExitPair, _) => vec![part("enter", Entry, false), part("leave", Exit, false)],
        (LinkKind::ReturnSites, _) => {
            vec![part("enter_caller", Entry, false), part("leave_caller", Return, false)]
        }
        (LinkKind::ReturnPair, Tier::A) => vec![session("session")],
        (LinkKind::EmptyReturnPair, Tier::A) => vec![session("empty")],
        (LinkKind::ReturnPair, _) => vec![part("leave", Entry, true), part("enter", Entry, false)],
        (LinkKind::EmptyReturnPair, _) => vec![part("empty", Entry, true), part("empty", Entry, false)],
    }
}

/// What attaching needs to know of the kernel.
pub(super) struct Attacher<'a> {
    pub programs: &'a Programs,
    pub tier: Tier,
    /// Replaces the session program (a variant without kernel functions).
    pub session_program: &'static str,
}

impl Attacher<'_> {
    pub fn attach(&self, group: &AttachGroup) -> Result<Attached, AttachError> {
        let path = CString::new(group.module.as_os_str().as_bytes())
            .map_err(|_| AttachError::Path(group.module.clone()))?;
        let mut refused: Vec<RefusedSite> = Vec::new();
        let mut bad_classes: HashSet<ClassId> = HashSet::new();
        // A pair of which one site is refused must go whole, but its other link may exist by then: start again
        // without it. Each round loses a class, and refusals are rare.
        loop {
            let sites: Vec<Site> =
                group.sites.iter().filter(|s| !bad_classes.contains(&s.class)).copied().collect();
            let round = self.attach_all(group, &path, &sites)?;
            if round.refused.is_empty() {
                drop_siblings(group, &bad_classes, &mut refused);
                return finish(group, round.link, refused);
            }
            let pairs = group.kind != LinkKind::ReturnSites && parts(group.kind, self.tier).len() > 1;
            bad_classes.extend(round.refused.iter().map(|r| r.site.class));
            refused.extend(round.refused);
            if !pairs {
                return finish(group, round.link, refused);
            }
        }
    }

    /// Loads the programs of a kind. The kernel looks at each for 1 ms to 0.4 s when it is loaded.
    pub fn load(&self, kind: LinkKind) -> Result<(), KernelError> {
        parts(kind, self.tier)
            .iter()
            .try_for_each(|part| self.programs.get(self.name(part), part.flavour).map(|_| ()))
    }

    fn name(&self, part: &Part) -> &'static str {
        if part.program == "session" { self.session_program } else { part.program }
    }

    fn attach_all(
        &self,
        group: &AttachGroup,
        path: &CString,
        sites: &[Site],
    ) -> Result<Attached, AttachError> {
        let mut all = Vec::new();
        let mut refused = Vec::new();
        let cpu_ns = Cell::new(0);
        let parts = parts(group.kind, self.tier);
        // All of them first: the target would pay for the part that is in place while the kernel looks at the next program.
        self.load(group.kind)?;
        for part in parts {
            let program = self.programs.get(self.name(&part), part.flavour)?;
            let chosen: Vec<Site> = sites.iter().filter(|s| s.role == part.role).copied().collect();
            if chosen.is_empty() {
                // All of them refused in an earlier round; or callers in another module than the function.
                let elsewhere = group.kind == LinkKind::ReturnSites && !sites.is_empty();
                if elsewhere || group.sites.iter().any(|s| s.role == part.role) {
                    continue;
                }
                let missing = part.role.name();
                return Err(AttachError::Empty { module: group.module.clone(), missing });
            }
            let request = Request {
                group,
                path,
                part: &part,
                program: program.as_fd(),
                tier: self.tier,
                cpu_ns: &cpu_ns,
            };
            let mut created = Vec::new();
            request.create(&chosen, &mut created, &mut refused)?;
            // Later parts are closed first.
            created.append(&mut all);
            all = created;
        }
        let sites = sites.len() - refused.len();
        Ok(Attached { link: Link { parts: all, sites, registration_ns: cpu_ns.get() }, refused })
    }
}

/// The sites of a refused pair that were not refused themselves.
fn drop_siblings(group: &AttachGroup, bad: &HashSet<ClassId>, refused: &mut Vec<RefusedSite>) {
    for site in group.sites.iter().filter(|s| bad.contains(&s.class)) {
        if !refused.iter().any(|r| r.site == *site) {
            refused.push(RefusedSite {
                site: *site,
                error: io::Error::other("another site of this class was refused"),
            });
        }
    }
}

fn finish(group: &AttachGroup, link: Link, mut refused: Vec<RefusedSite>) -> Result<Attached, AttachError> {
    if link.parts.is_empty() {
        let first = refused.swap_remove(0);
        return Err(AttachError::AllRefused {
            module: group.module.clone(),
            offset: first.site.offset,
            source: first.error,
        });
    }
    Ok(Attached { link, refused })
}

struct Request<'a> {
    group: &'a AttachGroup,
    path: &'a CString,
    part: &'a Part,
    program: std::os::fd::BorrowedFd<'a>,
    tier: Tier,
    /// CPU time of making links so far, ns.
    cpu_ns: &'a Cell<u64>,
}

impl Request<'_> {
    /// Links the sites; where the kernel refuses, halves them until the bad ones are found.
    fn create(
        &self,
        sites: &[Site],
        created: &mut Vec<(OwnedFd, u32)>,
        refused: &mut Vec<RefusedSite>,
    ) -> Result<(), AttachError> {
        let before_ns = thread_cpu_ns();
        let linked = self.link(sites);
        self.cpu_ns.set(self.cpu_ns.get() + thread_cpu_ns().saturating_sub(before_ns));
        let error = match linked {
            Ok(mut parts) => {
                created.append(&mut parts);
                return Ok(());
            }
            Err(error) => error,
        };
        if !may_be_one_site(&error) {
            return Err(AttachError::Refused {
                module: self.group.module.clone(),
                pid: self.group.pid,
                sites: sites.len(),
                source: error,
            });
        }
        if let [site] = sites {
            refused.push(RefusedSite { site: *site, error });
            return Ok(());
        }
        let (left, right) = sites.split_at(sites.len() / 2);
        self.create(left, created, refused)?;
        self.create(right, created, refused)
    }

    fn cookie(&self, site: &Site) -> u64 {
        let linked =
            self.part.returns || matches!(self.group.kind, LinkKind::ReturnPair | LinkKind::OperationReturn);
        // After a return the slot lies just below the stack pointer, whatever the entry site was.
        let slot_delta = if self.part.returns { -1 } else { site.slot_delta };
        // A distance that does not fit is not known.
        let distance = site.distance.map_or(0, |d| u16::from(d) + 1) & 0xff;
        let flags = if linked { COOKIE_RETURN_LINK } else { 0 } | distance << COOKIE_DISTANCE_SHIFT;
        Cookie { class: site.class.0, slot_delta, flags }.pack()
    }

    fn link(&self, sites: &[Site]) -> io::Result<Vec<(OwnedFd, u32)>> {
        if self.part.flavour == Flavour::PerfUprobe {
            return sites
                .iter()
                .map(|site| self.link_perf(site))
                .collect::<io::Result<Vec<_>>>()
                .map(|pairs| pairs.into_iter().flatten().map(|fd| (fd, 1)).collect());
        }
        let number = u32::try_from(sites.len()).unwrap_or(u32::MAX);
        let offsets: Vec<u64> = sites.iter().map(|s| s.offset).collect();
        let cookies: Vec<u64> = sites.iter().map(|s| self.cookie(s)).collect();
        let counters: Vec<u64> = if sites.iter().any(|s| s.reference_counter != 0) {
            sites.iter().map(|s| s.reference_counter).collect()
        } else {
            Vec::new()
        };
        let attach_type = if self.part.flavour == Flavour::Session {
            sys::ATTACH_UPROBE_SESSION
        } else {
            sys::ATTACH_UPROBE_MULTI
        };
        let request = MultiSites {
            path: self.path,
            offsets: &offsets,
            cookies: &cookies,
            reference_counters: &counters,
            // Where the kernel's PID filter is broken the programs filter.
            pid: if self.tier == Tier::C { 0 } else { self.group.pid },
        };
        sys::link_uprobe_multi(self.program, attach_type, self.part.returns, &request)
            .map(|fd| vec![(fd, number)])
    }

    /// A perf-event uprobe: an event of our own and a link on it. The link is to be closed first.
    fn link_perf(&self, site: &Site) -> io::Result<[OwnedFd; 2]> {
        let (kind, return_bit) = uprobe_pmu()?;
        let attr = sys::PerfEventAttr {
            kind,
            config: (u64::from(self.part.returns) << return_bit) | (site.reference_counter << 32),
            config1: self.path.as_ptr() as u64,
            config2: site.offset,
            ..Default::default()
        };
        // OK because PIDs are below 2^22.
        let event = sys::perf_event_open(&attr, self.group.pid as i32, -1)?;
        let link = sys::link_perf_event(self.program, event.as_fd(), self.cookie(site))?;
        Ok([link, event])
    }
}

/// CPU time of this thread, ns.
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // OK because CPU time is positive and far below 2^64 ns.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Type of the uprobe PMU and the bit of `config` that asks for returns.
fn uprobe_pmu() -> io::Result<(u32, u32)> {
    let base = Path::new("/sys/bus/event_source/devices/uprobe");
    let bad = |what: &str| io::Error::other(format!("cannot read {what} of {}", base.display()));
    let kind = std::fs::read_to_string(base.join("type"))?.trim().parse().map_err(|_| bad("type"))?;
    // "config:0"
    let format = std::fs::read_to_string(base.join("format/retprobe"))?;
    let bit = format
        .trim()
        .strip_prefix("config:")
        .and_then(|b| b.parse().ok())
        .ok_or_else(|| bad("format/retprobe"))?;
    Ok((kind, bit))
}

/// Errors that a single bad address can cause. Others concern the file, the process or us, and halving cannot help.
fn may_be_one_site(error: &io::Error) -> bool {
    /// The kernel's own ENOTSUPP ("instruction cannot be probed"), which leaks to user space.
    const ENOTSUPP: i32 = 524;
    !matches!(
        error.raw_os_error(),
        Some(
            libc::ESRCH
                | libc::ENOENT
                | libc::EPERM
                | libc::EACCES
                | libc::ENOMEM
                | libc::EMFILE
                | libc::ENFILE
                | libc::EBADF
                | libc::EFAULT
                | libc::EINTR
        ) | None
    ) || error.raw_os_error() == Some(ENOTSUPP)
}
