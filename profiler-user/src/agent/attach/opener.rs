//! Makes links, on a thread of its own: making one takes 10 to 50 ms, in which the event loop has other classes to look after.
//!
//! In: one [`Request`] at a time, for code that was looked at just before. Out: one [`Report`] for each, in the same order.
//!
//! ```text
//! control ─ quota 0 ─ begin ─ wanted? ─ attach (ms) ─ wanted? ─ register ─ [start] ─ quota q ─ report
//! ```
//! A target that ends unwants its links. The kernel takes a PID, which another process may have by then: one that lives after its link was made had
//! its PID all the time.
//! The breaker guards the links from `register` on, before anybody has read the report. The thread decides nothing, and knows of no class
//! but those of the request.

use super::super::clock::now_ns;
use crate::governor::{Counted, LinkTable, Registered};
use crate::prober::{
    AttachError, AttachGroup, Attached, ClassControl, ClassCounters, ClassTable, FLAG_LEARN_CALLERS, Kernel,
    Link, LinkKind,
};
use crate::target::Target;
use profiler_core::class::ClassId;
use profiler_core::recording::WindowKind;
use profiler_core::run::callers::ends_quota;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, error::TryRecvError, unbounded_channel};

/// Links to be made at once, and the windows to be opened on them.
pub struct Request {
    /// Of which kind the windows are.
    pub kind: WindowKind,
    /// The class that the links are registered under.
    pub leader: ClassId,
    /// The classes, the leader first. None: their windows are open, and get more sites in callers.
    pub members: Vec<Member>,
    /// What is attached in the module of the classes, if anything.
    pub attach: Option<AttachGroup>,
    /// What is attached in their callers.
    pub returns: Vec<Returns>,
    /// Classes that are traced all the time, to be counted beside a burst.
    pub traced: Vec<u32>,
    /// The process that they are attached in.
    pub target: Arc<Target>,
    /// CPU time of the target as last read, ns: where it cannot be read any more.
    pub last_cpu_ns: u64,
}

/// Sites in callers, of one file.
pub struct Returns {
    /// The sites.
    pub attach: AttachGroup,
    /// Where calls of each return to, in the order of the sites.
    pub addresses: Vec<u64>,
}

/// One class of a [`Request`].
pub struct Member {
    /// Which.
    pub class: ClassId,
    /// What the kernel programs shall do on a hit.
    pub control: ClassControl,
    /// Hits that its window may take.
    pub quota: u64,
}

/// What became of a [`Request`].
pub struct Report {
    /// Of which kind the windows are.
    pub kind: WindowKind,
    /// The class that the links are registered under.
    pub leader: ClassId,
    /// The links; or why there are none.
    pub made: Result<Made, Failure>,
}

/// Why there are no links.
pub enum Failure {
    /// The kernel refuses them.
    Refused(String),
    /// They were not wanted any more, or the process has ended, and they are closed again: so many, with so many sites, whose registering took so much CPU time, ns.
    Cancelled {
        /// Sites.
        sites: usize,
        /// CPU time, ns.
        registration_ns: u64,
        /// Links.
        links: usize,
    },
}

/// What both sides know of the link that is being made.
#[derive(Default)]
struct Shared {
    /// Since when, ktime ns; 0: none is.
    since_ns: AtomicU64,
    /// It is not wanted any more.
    cancelled: AtomicBool,
}

impl Shared {
    /// What is being made in that process is wanted still. One system call.
    fn wants(&self, target: &Target) -> bool {
        !self.cancelled.load(Ordering::Acquire) && target.is_alive()
    }
}

/// Links that were made.
pub struct Made {
    /// Classes that the kernel refuses, and why.
    pub refused: Vec<(ClassId, String)>,
    /// Sites on them, and CPU time that the kernel took to register those, ns.
    pub sites: usize,
    pub registration_ns: u64,
    /// How many there are.
    pub links: usize,
    /// The breaker has taken them off again: no gate was opened.
    pub tripped: bool,
    /// CPU time of the target when they were there, ns.
    pub base_cpu_ns: u64,
    /// The gates of the classes that were not refused.
    pub gates: Vec<Gate>,
    /// What the leader and those that are traced beside it were called when the gates were open, in a burst.
    pub beside: Option<Counted>,
    /// Callers whose returns are seen now, by the address that calls of the class return to.
    pub armed: Vec<(ClassId, u64)>,
    /// Callers that the kernel refuses, and why.
    pub unarmed: Vec<(ClassId, u64, String)>,
}

/// A gate that was opened, or would have been.
pub struct Gate {
    /// Whose.
    pub class: ClassId,
    /// Hits that it lets in.
    pub quota: u64,
    /// When, ktime ns, and the counters then.
    pub start_ns: u64,
    pub base: ClassCounters,
}

/// The loop's end of the thread.
pub struct Opener {
    requests: Option<Sender<Request>>,
    reports: UnboundedReceiver<Report>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread works with.
struct Worker {
    kernel: Arc<Kernel>,
    table: Arc<LinkTable>,
    classes: ClassTable,
    reports: UnboundedSender<Report>,
    shared: Arc<Shared>,
}

impl Opener {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(kernel: Arc<Kernel>, table: Arc<LinkTable>) -> io::Result<Self> {
        let (requests, receiver) = channel();
        let (sender, reports) = unbounded_channel();
        let classes = kernel.classes().clone();
        let shared = Arc::new(Shared::default());
        let worker = Worker { kernel, table, classes, reports: sender, shared: Arc::clone(&shared) };
        let thread =
            std::thread::Builder::new().name("tithe-opener".into()).spawn(move || worker.run(&receiver))?;
        Ok(Self { requests: Some(requests), reports, shared, thread: Some(thread) })
    }

    /// Has links made. Where the thread is gone there will be no report, which [`Opener::take`] says.
    pub fn send(&self, request: Request) {
        self.shared.cancelled.store(false, Ordering::Release);
        if let Some(requests) = &self.requests {
            let _ = requests.send(request);
        }
    }

    /// What is being made is not wanted any more: no gate of it is opened, unless that happens in this very moment.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Release);
    }

    /// Since when the thread makes the links that it makes now, ktime ns.
    #[must_use]
    pub fn busy_since_ns(&self) -> Option<u64> {
        Some(self.shared.since_ns.load(Ordering::Acquire)).filter(|since| *since > 0)
    }

    /// The next report that is there.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn take(&mut self) -> Result<Option<Report>, Gone> {
        match self.reports.try_recv() {
            Ok(report) => Ok(Some(report)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    /// Waits for the next report; none where the thread is gone. What comes is not lost if the wait is given up.
    pub async fn report(&mut self) -> Option<Report> {
        self.reports.recv().await
    }
}

/// The thread has ended, which it does not as long as it is wanted.
#[derive(Debug, thiserror::Error)]
#[error("the thread that makes links has ended: what is attached is taken off; please report this")]
pub struct Gone;

impl Drop for Opener {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been shown by the panic hook.
            drop(thread.join());
        }
    }
}

impl Worker {
    fn run(&self, requests: &Receiver<Request>) {
        while let Ok(request) = requests.recv() {
            let (kind, leader) = (request.kind, request.leader);
            // Before the watchdog's patience counts: on a busy machine the kernel's look at a program takes longer than that.
            let groups = request.returns.iter().map(|returns| &returns.attach).chain(&request.attach);
            let kinds: Vec<LinkKind> = groups.map(|group| group.kind).collect();
            self.kernel.load_programs(&kinds);
            self.shared.since_ns.store(now_ns(), Ordering::Release);
            let made = self.open(&request);
            self.shared.since_ns.store(0, Ordering::Release);
            if self.reports.send(Report { kind, leader, made }).is_err() {
                return;
            }
        }
    }

    fn open(&self, request: &Request) -> Result<Made, Failure> {
        let leader = request.leader.0;
        for member in &request.members {
            self.table.join(member.class.0, leader);
            self.classes.configure(member.class, member.control);
            // Links that trip while they are made have a window without an opened gate: it must not have the CPU time of an earlier one.
            self.classes.shut(member.class);
        }
        let learns = |member: &&Member| member.control.flags & FLAG_LEARN_CALLERS != 0;
        let learning: Vec<ClassId> =
            request.members.iter().filter(learns).map(|member| member.class).collect();
        self.kernel.forget_callers(&learning);
        if !request.members.is_empty() {
            self.table.begin(leader);
        }
        // Loading programs may have taken as long as the window.
        if !self.shared.wants(&request.target) {
            return Err(Failure::Cancelled { sites: 0, registration_ns: 0, links: 0 });
        }
        // Sites in callers first: no call is let in whose end would be missed. Each is hit by the calls of one caller, the entry's by all.
        let mut links = Links::default();
        for returns in &request.returns {
            links.take_returns(returns, self.kernel.attach(&returns.attach));
        }
        let mut refused = Vec::new();
        if let Some(attach) = &request.attach {
            let attached = self.kernel.attach(attach).map_err(|e| Failure::Refused(e.to_string()))?;
            refused = links.take(attached);
        }
        let Links { parts, sites, registration_ns, mut armed, mut unarmed } = links;
        let links = parts.len();
        if !self.shared.wants(&request.target) {
            // Closing waits until the kernel is done.
            drop(parts);
            return Err(Failure::Cancelled { sites, registration_ns, links });
        }
        let registered = self.table.register_all(leader, parts);
        armed.retain(|(class, address)| {
            let armed = self.kernel.arm_caller(*class, *address);
            if !armed {
                unarmed.push((*class, *address, "the kernel's table of callers is full".to_owned()));
            }
            armed
        });
        let base_cpu_ns = request.target.cpu_time_ns().unwrap_or(request.last_cpu_ns);
        // A hot class may have been turned away often enough to raise an alarm by now. Heeded after the gates are open, it would close
        // the link of a window that has seen nothing, and the window would look like one in which nothing was called.
        let tripped = if request.members.is_empty() {
            // What trips from now on has these links among its own.
            registered == Registered::Tripped
        } else {
            !self.table.open_gates(leader)
        };
        let taken = |member: &&Member| !refused.iter().any(|(class, _)| *class == member.class);
        let gate = |member: &Member| {
            let (start_ns, base) = if tripped {
                (now_ns(), self.classes.counters(member.class))
            } else {
                open_gate(&self.classes, member.class, member.quota)
            };
            Gate { class: member.class, quota: member.quota, start_ns, base }
        };
        let gates = request.members.iter().filter(taken).map(gate).collect();
        let beside = if tripped { None } else { self.table.begin_beside(leader, &request.traced) };
        Ok(Made {
            refused,
            sites,
            registration_ns,
            links,
            tripped,
            base_cpu_ns,
            gates,
            beside,
            armed,
            unarmed,
        })
    }
}

/// Links that were made, in the order in which they are to be closed: what is hit most goes first.
#[derive(Default)]
struct Links {
    parts: Vec<(OwnedFd, u32)>,
    sites: usize,
    registration_ns: u64,
    armed: Vec<(ClassId, u64)>,
    unarmed: Vec<(ClassId, u64, String)>,
}

impl Links {
    /// Takes a link. The classes that the kernel refused, and why.
    fn take(&mut self, attached: Attached) -> Vec<(ClassId, String)> {
        let Attached { link, refused } = attached;
        self.add(link);
        let why = |error| format!("the kernel refuses the site: {error}");
        refused.into_iter().map(|refusal| (refusal.site.class, why(refusal.error))).collect()
    }

    fn add(&mut self, link: Link) {
        self.sites += link.sites();
        self.registration_ns += link.registration_ns();
        let parts = link.into_parts();
        self.parts.splice(0..0, parts);
    }

    /// Takes the link of sites in callers. Those that are refused get none, and calls from there are not timed.
    fn take_returns(&mut self, returns: &Returns, attached: Result<Attached, AttachError>) {
        let sites = returns.attach.sites.iter().zip(&returns.addresses);
        let attached = match attached {
            Ok(attached) => attached,
            Err(error) => {
                let why = error.to_string();
                self.unarmed.extend(sites.map(|(site, address)| (site.class, *address, why.clone())));
                return;
            }
        };
        for (site, address) in sites {
            match attached.refused.iter().find(|refusal| refusal.site == *site) {
                Some(refusal) => self.unarmed.push((site.class, *address, refusal.error.to_string())),
                None => self.armed.push((site.class, *address)),
            }
        }
        self.add(attached.link);
    }
}

/// Sets the quota of an attached class: when its window began, and the counters then. Again where that was interrupted, because
/// hits were turned away meanwhile in a time that would count.
fn open_gate(classes: &ClassTable, id: ClassId, quota: u64) -> (u64, ClassCounters) {
    /// Longer than it takes, ns.
    const INTERRUPTED_NS: u64 = 100_000;
    let ends = i64::try_from(ends_quota(quota)).unwrap_or(i64::MAX);
    let quota = i64::try_from(quota).unwrap_or(i64::MAX);
    let mut tries = 0;
    loop {
        let before_ns = now_ns();
        let base = classes.counters(id);
        let start_ns = now_ns();
        classes.set_ends_quota(id, ends);
        classes.forget_first(id);
        classes.set_quota(id, quota);
        tries += 1;
        if tries == 4 || now_ns().saturating_sub(before_ns) < INTERRUPTED_NS {
            return (start_ns, base);
        }
        classes.shut(id);
    }
}
