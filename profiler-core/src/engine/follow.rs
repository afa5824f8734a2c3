//! From the orders of clients to commands for the agent: what the run does by itself is done, and who asks for links is let in or told why not.

use super::Run;
use super::command::{Attach, Command, SurveyLinks};
use super::input::Doubt;
use crate::class::ClassId;
use crate::clients::Client;
use crate::clients::activity::Notice;
use crate::clients::operations;
use crate::recording::{ChangeKind, WindowKind};
use crate::run::links::{Need, surplus};
use crate::run::order::{Ending, Order, Purpose};
use crate::run::outcome::{NotOpened, Outcome};
use crate::run::view::{LinkView, View};

/// Functions attached at a time through perf-event uprobes.
const SLOW_LINKS: usize = 8;

/// A class that is to be attached: its quota in hits, and what for.
type Wanted = (ClassId, u64, Purpose);

impl Run {
    /// Follows orders, in their order.
    pub(super) fn follow(&mut self, orders: Vec<Order>, view: &View) {
        self.follow_with(orders, view, false);
    }

    /// The same. `once`: links that are asked for to be traced are not to be expected again.
    pub(super) fn follow_with(&mut self, orders: Vec<Order>, view: &View, once: bool) {
        let mut orders = orders.into_iter().peekable();
        while let Some(order) = orders.next() {
            match order {
                Order::Open { class, kind, quota, purpose } => {
                    let mut wanted: Vec<Wanted> = vec![(class, quota, purpose)];
                    while let Some(Order::Open { class, quota, purpose, .. }) =
                        orders.next_if(|next| is_asked_with(next, kind, purpose))
                    {
                        wanted.push((class, quota, purpose));
                    }
                    if kind == WindowKind::Burst {
                        let all: Vec<ClassId> = wanted.iter().map(|w| w.0).collect();
                        wanted.retain(|one| !self.ask_with_reference(*one, &all, view));
                    }
                    self.ask(kind, wanted, once && kind == WindowKind::Trace, None, view);
                }
                Order::OpenSurvey { windows, together, alone_ns, until_ns } => {
                    let wanted = windows
                        .into_iter()
                        .map(|(class, quota, window_ns)| (class, quota, Purpose::Survey(window_ns)))
                        .collect();
                    // A survey has no later: it waits, as long as it lasts. Whatever else is asked for comes again.
                    let until_ns = self.times.end_ns.map_or(until_ns, |end| end.min(until_ns));
                    let links = SurveyLinks { together, alone_ns, until_ns };
                    self.ask(WindowKind::Survey, wanted, false, Some(links), view);
                }
                Order::Restore(quotas) => self.restore(&quotas, view),
                Order::HoldOperations => self.tell_operations(operations::Input::Hold, view),
                Order::VoidComparison => self.void_comparison(view.now_ns),
                Order::Prices(factor) => self.accounts.ledger.set_factor(factor),
                Order::CutBudget(factor) => self.accounts.ledger.cut_budget(factor),
                Order::Replan(why) => self.want_plan(why),
                Order::Operation(order) => self.commands.push(Command::Operation(order)),
                other => self.commands.extend(passed_on(other)),
            }
        }
    }

    /// Links go in the middle of a window of the comparison: the window does not count.
    pub(super) fn void_comparison(&mut self, now_ns: u64) {
        if let Some(measuring) = &mut self.measuring {
            measuring.overhead.void(now_ns);
        }
    }

    /// Asks for a new plan; why, if it is known.
    pub(super) fn want_plan(&mut self, why: Option<String>) {
        if let Some(why) = &why {
            self.commands.push(Command::Detail(format!("new plan: {why}")));
        }
        self.trace.want(why);
    }

    /// Has those attached again that are still wanted. The client of operations asks for its own in its next turn, with quotas from what the
    /// second leaves by then.
    fn restore(&mut self, quotas: &[(ClassId, u64)], view: &View) {
        let purpose = |id: ClassId| match self.owner(id) {
            Some(number) => Some(Purpose::Activity(number)),
            None if self.is_metric(id) => Some(Purpose::Metric),
            None if self.trace.is_attached(id) => Some(Purpose::Trace),
            None => None,
        };
        let wanted = quotas.iter().filter_map(|(id, quota)| Some((*id, *quota, purpose(*id)?))).collect();
        self.ask(WindowKind::Trace, wanted, false, None, view);
    }

    /// It was asked for just now, which the view does not show yet.
    pub(super) fn is_asked_for(&self, id: ClassId) -> bool {
        let asks = |command: &Command| matches!(command, Command::Attach(attach) if attach.wanted.iter().any(|w| w.0 == id));
        self.commands.iter().any(asks)
    }

    /// A burst of a function whose pair of sites is measuring, or asked for just now, before it: its programs would run between the pair's stamps, and the pair would have
    /// measured nothing. A window of a pair takes half a second at most, and there are few.
    /// `together`: what is asked for with it.
    pub(super) fn is_beside_pair(
        &self,
        (class, _, purpose): Wanted,
        together: &[ClassId],
        view: &View,
    ) -> bool {
        if !matches!(purpose, Purpose::Burst(_) | Purpose::Trial) {
            return false;
        }
        let is_asked = |id: ClassId| together.contains(&id) || self.is_asked_for(id);
        let mut pairs = view.classes.iter().filter(|pair| pair.traits.stamps_of == Some(class));
        pairs.any(|pair| pair.link != LinkView::Off || is_asked(pair.id))
    }

    /// Has classes attached that can be. Whoever asked for another one that is off is told at once; one that is attached, or waits, is
    /// left alone.
    pub(super) fn ask(
        &mut self,
        kind: WindowKind,
        wanted: Vec<Wanted>,
        once: bool,
        survey: Option<SurveyLinks>,
        view: &View,
    ) {
        let may_ask = self.suspension().may_ask();
        // The client of operations has looked at its own classes, which is all that its steps see.
        let seen = |w: &Wanted| w.2 == Purpose::Operation;
        let off = |w: &Wanted| seen(w) || view.class(w.0).link == LinkView::Off;
        let (off, busy): (Vec<Wanted>, Vec<Wanted>) = wanted.into_iter().partition(off);
        let (mut asked, refused): (Vec<Wanted>, Vec<Wanted>) =
            off.into_iter().partition(|w| seen(w) || view.class(w.0).may_open());
        let mut told: Vec<(Wanted, NotOpened)> =
            refused.into_iter().map(|w| (w, NotOpened::KnownRefused)).collect();
        // A survey reserves tokens for its windows until they are answered; somebody else has this class.
        let taken = |w: &Wanted| kind == WindowKind::Survey && view.class(w.0).link.is_taken();
        told.extend(busy.into_iter().filter(taken).map(|w| (w, NotOpened::NotNow)));
        // On another's link since the view was filled.
        let is_lent = |w: &mut Wanted| w.2 != Purpose::Reference && self.activities.references.is_lent(w.0);
        told.extend(asked.extract_if(.., is_lent).map(|w| (w, NotOpened::NotNow)));
        let together: Vec<ClassId> = asked.iter().map(|w| w.0).collect();
        let beside = |w: &mut Wanted| self.is_beside_pair(*w, &together, view);
        told.extend(asked.extract_if(.., beside).map(|w| (w, NotOpened::NotNow)));
        let slow = self.too_many_slow(kind, &asked, view);
        told.extend(asked.extract_if(.., |w| slow.contains(&w.0)).map(|w| (w, NotOpened::Refused)));
        if !may_ask {
            told.extend(asked.drain(..).map(|w| (w, NotOpened::NotNow)));
        }
        for ((class, _, purpose), why) in told {
            let why = if may_ask { why } else { NotOpened::NotNow };
            let outcome = Outcome { number: 0, class, purpose, opened: Err(why) };
            self.heed(&outcome, view);
        }
        if asked.is_empty() {
            return;
        }
        self.askings += 1;
        self.commands.push(Command::Attach(Attach {
            number: self.askings,
            kind,
            wanted: asked,
            once,
            survey,
        }));
    }

    /// Perf-event uprobes (before Linux 6.6) take 0.1 to 0.3 s each to detach, one after the other, and stall the target
    /// at each attach and detach: only few at a time, and no short bursts to learn rates. Those of `asked` that are too many.
    fn too_many_slow(&mut self, kind: WindowKind, asked: &[Wanted], view: &View) -> Vec<ClassId> {
        if !self.trace.settings().slow_links {
            return Vec::new();
        }
        if kind == WindowKind::Survey {
            return asked.iter().map(|w| w.0).collect();
        }
        let asked_for = |command: &Command| match command {
            Command::Attach(attach) => attach.wanted.len(),
            _ => 0,
        };
        let busy = view.classes.iter().filter(|c| c.link != LinkView::Off).count()
            + self.commands.iter().map(asked_for).sum::<usize>();
        let need = |id: ClassId| view.class(id).traits.role.need();
        let needs: Vec<(ClassId, Need)> = asked.iter().map(|w| (w.0, need(w.0))).collect();
        let waiting: Vec<Need> = self
            .operations
            .as_ref()
            .map_or_else(Vec::new, |o| o.waiting(view))
            .into_iter()
            .filter(|id| !asked.iter().any(|w| w.0 == *id))
            .map(need)
            .collect();
        let surplus = surplus(&needs, SLOW_LINKS.saturating_sub(busy), &waiting);
        let why = format!(
            "uprobes of this kernel are slow to detach, so at most {SLOW_LINKS} functions are traced at a time; \
             Linux 6.6 brought better ones"
        );
        self.commands.extend(surplus.iter().map(|id| Command::Refuse(*id, why.clone())));
        if let [first, others @ ..] = &surplus[..] {
            let more = if others.is_empty() {
                String::new()
            } else {
                format!("; so it is with {} more", others.len())
            };
            self.commands.push(Command::Change(ChangeKind::Refused, Some(*first), why + &more));
        }
        surplus
    }

    /// Tells who asked what became of it.
    pub(super) fn heed(&mut self, outcome: &Outcome, view: &View) {
        match (outcome.purpose, outcome.opened) {
            (Purpose::Trace | Purpose::Burst(_) | Purpose::Trial, _) => self.trace.heed(outcome, view.now_ns),
            (Purpose::Survey(_), _) => self.survey.heed(outcome),
            (Purpose::Activity(number), _) => self.activities.tell_late(number, Notice::Outcome(*outcome)),
            // One whose link tripped meanwhile ends as any other window.
            (_, Ok(_) | Err(NotOpened::Tripped)) => {}
            (Purpose::Reference, Err(_)) => self.activities.references.back(outcome.class),
            (Purpose::Operation, Err(_)) => {
                self.tell_operations(operations::Input::Outcome(*outcome), view);
            }
            // Asked for again at the next turn.
            (Purpose::Metric, Err(_)) => {}
        }
    }

    /// A step of the operations.
    pub(super) fn tell_operations(&mut self, input: operations::Input, view: &View) {
        let grant = self.operations_grant(view);
        let Some(mut client) = self.operations.take() else { return };
        let mut orders = Vec::new();
        client.step(input, &grant, view, &mut orders);
        for charged in client.take_charges() {
            self.accounts.ledger.charge(charged.charge, None, charged.units, charged.cost_ns);
        }
        self.operations = Some(client);
        self.follow(orders, view);
    }

    /// Return links go.
    pub(super) fn drop_links(&mut self, classes: &[ClassId], doubt: Doubt, view: &View) {
        if doubt == Doubt::Begins {
            self.void_comparison(view.now_ns);
        }
        // Also where that went on: recording came back with links that were on their way.
        self.tell_operations(operations::Input::Hold, view);
        self.commands.extend(classes.iter().map(|class| Command::Close(*class, Ending::AtOnce)));
        if let Doubt::Unsafe(why) = doubt {
            self.commands.extend(classes.iter().map(|class| Command::NoReturnLink(*class, why.clone())));
        }
    }
}

/// What is passed on as it is.
fn passed_on(order: Order) -> Option<Command> {
    Some(match order {
        Order::GiveUpSurvey => Command::GiveUpSurvey,
        Order::Dormant(class) => Command::Dormant(class),
        Order::Close(class, ending) => Command::Close(class, ending),
        Order::CloseAll(ending) => Command::CloseAll(ending),
        Order::Quota(class, hits) => Command::Quota(class, hits),
        Order::Period(period_ns) => Command::Period(period_ns),
        Order::PauseSampling => Command::PauseSampling,
        Order::ResumeSampling => Command::ResumeSampling,
        Order::LetGo(pids) => Command::LetGo(pids),
        Order::Note(text) => Command::Note(text),
        Order::Detail(text) => Command::Detail(text),
        Order::Warn(text) => Command::Warn(text),
        Order::NotObserved(what, why) => Command::NotObserved(what, why),
        Order::Change(kind, class, text) => Command::Change(kind, class, text),
        Order::Open { .. }
        | Order::OpenSurvey { .. }
        | Order::Restore(_)
        | Order::HoldOperations
        | Order::Operation(_)
        | Order::VoidComparison
        | Order::Prices(_)
        | Order::CutBudget(_)
        | Order::Replan(_) => return None,
    })
}

/// The next order asks for such a window, too, and for a like purpose: both can share a link. A trial is asked for by itself.
fn is_asked_with(next: &Order, kind: WindowKind, purpose: Purpose) -> bool {
    let is_trial = |purpose| purpose == Purpose::Trial;
    match next {
        Order::Open { kind: other, purpose: why, .. } => {
            *other == kind && is_trial(*why) == is_trial(purpose)
        }
        _ => false,
    }
}
