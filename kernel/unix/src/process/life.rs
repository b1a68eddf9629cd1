//! The end of a process, and its replacement by another program: everything that it holds is given up in steps.

use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::Ordering;
use core::task::{Poll, Waker};

use ::signals::Signal;
use abi_queue::Priority;

use crate::asynchronous::input;
use crate::asynchronous::operation::MEMORY_OF_A_CALL;
use crate::files::machine_end::{self, MachineEnd};
use crate::files::{carriers, job_control, mounts, remains};
use crate::process::completions::drop_in_steps;
use crate::process::exit_status::Ending;
use crate::process::worker::Worker;
use crate::process::{CallOwner, FIRST, Member, Process, signal_delivery, signal_sending, table};
use crate::scheduling::executor::{self, Cid};
use crate::scheduling::standing::MOST_CLAIM;
use crate::scheduling::{steps, stretch};

/// Number of descriptors that one step of the end of a process closes. The objects behind them may be in many lists.
const CLOSED_AT_A_TIME: usize = 8;
impl Process {
    // ---- ending ----

    /// Makes all threads and calls in flight of a process that has ended look around, in steps. Called by every worker
    /// that leaves; the first does it.
    ///
    /// # Cancellation
    /// Not to be dropped: the remaining ones would never be called.
    pub(crate) async fn call_all(&self) {
        // AcqRel: a later worker finds that this has begun.
        if self.all_are_called.swap(true, Ordering::AcqRel) {
            return;
        }
        // The watchdog no longer finds a process that is ending, and its parent waits.
        executor::set_priority(executor::current(), MOST_CLAIM);
        self.model.call_back();
        let mut slot = 0;
        loop {
            let mut more = false;
            for thread in self.threads.lock().from(slot).take(steps::ENTRIES) {
                thread.interrupt();
                (slot, more) = (thread.index() + 1, true);
            }
            if !more {
                break;
            }
            steps::pause_at_the_end().await;
        }
        // Their entries go at once, since they cannot be cancelled any more.
        let calls = {
            let mut calls = self.calls.lock();
            // Under the lock, as all changes of the number.
            self.called_to_end.store(calls.len(), Ordering::Relaxed);
            calls.take()
        };
        for (number, call) in calls.into_values().enumerate() {
            if let CallOwner::Coroutine(cid) = call.owner {
                // The watchdog will not find it to prefer it when it starves.
                executor::set_priority(cid, MOST_CLAIM);
            }
            call.owner.wake();
            if number % steps::ENTRIES == 0 {
                steps::pause_at_the_end().await;
            }
        }
    }

    /// Lets a process that has ended go before everything else: a process waits for its memory, perhaps a more
    /// important one that tries again and again and would never let it run. Of many threads, each time some: the first
    /// calls the others, and whoever tries again comes to them, too.
    pub(super) fn boost(&self) {
        self.dump.give_up();
        for worker in self.workers.lock().iter() {
            worker.boost();
        }
        let from = self.boosted.load(Ordering::Relaxed);
        let mut next = 0;
        for thread in self.threads.lock().from(from).take(steps::ENTRIES) {
            thread.boost();
            next = thread.index() + 1;
        }
        self.boosted.store(next, Ordering::Relaxed);
        let last = Cid::from_raw(self.last_worker.load(Ordering::Relaxed));
        executor::set_priority(last, Priority::HIGHEST);
    }

    /// Closes all descriptors, in steps. Returns whether sockets that were in messages are among them, or were closed
    /// before.
    async fn close_descriptors(&self) -> bool {
        // Taken out of the lock: closing may wake others and free much.
        let descriptors = self.descriptors.lock().take();
        let mut were_sent = descriptors.has_closed_sent();
        for (number, file) in descriptors.into_files().enumerate() {
            let is_end_of_piece = file.is_none();
            were_sent |= file.as_ref().is_some_and(|file| file.was_sent());
            drop(file);
            if number % CLOSED_AT_A_TIME == 0 || is_end_of_piece || remains::are_left() {
                steps::pause_at_the_end().await;
            }
            remains::free_at_the_end().await;
        }
        // Remains of calls that have ended with the process, too.
        remains::free_at_the_end().await;
        were_sent
    }

    /// Waits until something of the process has gone, as [`poll_departed`](Self::poll_departed) tells.
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    async fn departed(&self, has_gone: impl Fn() -> bool) {
        poll_fn(|cx| if self.poll_departed(cx.waker(), &has_gone) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Returns whether something of the process has gone; if not, `waker` is woken when anything goes. One coroutine
    /// waits at a time: the last worker's, or the kept worker's.
    fn poll_departed(&self, waker: &Waker, has_gone: impl Fn() -> bool) -> bool {
        // Registered before the look: a later departure finds the waker. For one waker this needs no memory; if there
        // were another, it would come back until there is some.
        if self.departures.lock().register(waker).is_err() {
            waker.wake_by_ref();
        }
        let has_gone = has_gone();
        if has_gone {
            self.departures.lock().forget(waker);
        }
        has_gone
    }

    /// Takes a process apart that has ended, in the coroutine of its last worker. Its ending remains, for its parent,
    /// which learns of it when nothing of the process is in use any more.
    ///
    /// # Cancellation
    /// Not to be dropped: the rest would never be done.
    #[doc(alias = "do_exit")]
    #[doc(alias = "exit_mm")]
    #[doc(alias = "exit_files")]
    pub(crate) async fn take_apart(self: &Arc<Process>) {
        self.last_worker.store(executor::current().raw(), Ordering::Relaxed);
        self.write_core_file().await;
        executor::set_priority(executor::current(), MOST_CLAIM);
        let were_sent = self.close_descriptors().await;
        if self.timers.end() {
            self.departed(|| self.timers.are_at_rest()).await;
        }
        if input::hand_over(self) {
            self.departed(|| self.input_calls.are_over()).await;
        }
        stretch::goes_on_as(abi_unix::trace::stretch::END);
        crate::scheduling::forget(self);
        remains::look_behind();
        self.rings.clear();
        // Its parent's memory, if it is that, stays as it is.
        self.address_space.leave_lender();
        while self.space().clear_part() {
            steps::pause_at_the_end().await;
        }
        self.space().retire();
        self.address_space.tables().lock().shrink_to(0);
        // Calls in flight hold files, ports and ends of pipes.
        self.departed(|| {
            let calls = self.calls.lock();
            calls.is_empty() && self.called_to_end.load(Ordering::Relaxed) == 0
        })
        .await;
        // One of them may have changed a semaphore up to now.
        while !self.debts.lock().pay_some(self.id) {
            steps::pause_at_the_end().await;
        }
        // They may have copied to the lender's memory up to now.
        self.address_space.end_loan();
        // Calls in flight have held sockets that nothing but messages may hold now.
        if were_sent {
            carriers::look_after_collection(self.id);
            for _ in 0..=carriers::looks_at_all() {
                carriers::look_around(self.id);
                steps::pause_at_the_end().await;
            }
        }
        // An `accept` that was in progress when they were closed has made one more.
        self.close_descriptors().await;
        self.workers.lock().clear();
        self.threads.lock().clear();
        self.beginnings.clear().await;
        let ending = self.ending.lock().unwrap_or(Ending::Exited(0));
        let time = self.used_time() + self.children_time();
        // Room for completions, of which there will be none.
        let room = core::mem::take(&mut self.completions.lock().waiting);
        drop_in_steps(room).await;
        loop {
            let (is_more, orphaned) = self.let_go_of_children();
            for group in orphaned.groups() {
                signal_sending::wake_orphans(*group).await;
            }
            if !is_more {
                break;
            }
            steps::pause_at_the_end().await;
        }
        job_control::leader_has_ended(self).await;
        self.leave_mounts();
        remains::free_at_the_end().await;
        steps::pause_at_the_end().await;
        // Taken out of the lock before they are woken.
        let (mut waiters, is_orphaned) = table::unregister(self, ending, time);
        waiters.wake_all();
        // The zombie has it by now, if there is one.
        if let Some(lifetime) = self.lifetime.get() {
            lifetime.ends();
        }
        if is_orphaned {
            signal_sending::wake_orphans(self.group()).await;
        }
        if let Some(parent) = table::find(self.parent()) {
            signal_delivery::tell_end(&parent, self.id, ending);
        }
        if self.id == FIRST {
            machine_end::begin(MachineEnd::AfterFirst(ending));
        }
    }

    /// Lets go of some children, and tells them and their heir; returns whether there may be more, and the groups that
    /// have become orphaned.
    fn let_go_of_children(&self) -> (bool, table::Orphaned) {
        let (is_more, orphaned, news) = table::let_go_of_children(self);
        for (child, signal) in news.signals {
            if let Some(signal) = Signal::new(signal.into()) {
                signal_delivery::send_from_kernel(&child, signal);
            }
        }
        if let Some((heir, child, ending, mut waiters)) = news.inherited {
            waiters.wake_all();
            signal_delivery::tell_end(&heir, child, ending);
        }
        (is_more, orphaned)
    }

    /// Lets go of the places that keep mounts in use: the process lives on as long as anything refers to it, and its
    /// parent may unmount what it has used as soon as it has waited for it.
    fn leave_mounts(&self) {
        let directory = core::mem::replace(&mut *self.directory.lock(), mounts::root());
        let executable = self.executable.lock().take();
        drop((directory, executable));
    }

    // ---- another program ----

    /// Makes all workers but one end, and all calls in flight, in steps, and waits until they have: another program
    /// takes the place of the present one. Returns `false` if the process ends or another worker was first, which ends
    /// the caller's.
    ///
    /// # Cancellation
    /// Not to be dropped: some of them would go on.
    pub(crate) async fn keep_only(&self, kept: &Arc<Worker>) -> bool {
        let own = kept.index() + 1;
        // AcqRel: of two workers that execute a program one wins, and sees what an earlier one has left.
        let first = self.executes.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            kept.stop();
        }
        loop {
            if kept.is_to_stop() {
                return false;
            }
            // A worker that was about to leave may have added another, or have submitted a call, where the steps had
            // come by already. It departs after that, and then they begin again.
            let departed = self.departed_workers.load(Ordering::Acquire);
            self.stop_others(kept).await;
            self.rings.close();
            self.cancel_calls().await;
            let is_alone = poll_fn(|cx| {
                let is_alone = self.poll_alone(cx.waker());
                let begins_again = kept.is_to_stop() || self.departed_workers.load(Ordering::Acquire) != departed;
                if is_alone || begins_again { Poll::Ready(is_alone) } else { Poll::Pending }
            });
            if is_alone.await {
                return !kept.is_to_stop();
            }
        }
    }

    /// Stops all workers and threads but one, in steps.
    async fn stop_others(&self, kept: &Arc<Worker>) {
        let others = |worker: &&Arc<Worker>| !Arc::ptr_eq(worker, kept);
        self.workers.lock().iter().filter(others).for_each(|worker| worker.stop());
        let mut slot = 0;
        loop {
            steps::pause(self).await;
            let mut more = false;
            for thread in self.threads.lock().from(slot).take(steps::ENTRIES) {
                (slot, more) = (thread.index() + 1, true);
                if others(&thread) {
                    thread.stop();
                }
            }
            if !more {
                break;
            }
        }
    }

    /// Cancels all calls in flight, in steps.
    async fn cancel_calls(&self) {
        loop {
            let shuffles = self.calls.lock().shuffles();
            let mut next = Some(Member::CALLS);
            while let Some(member) = next {
                {
                    let mut calls = self.calls.lock();
                    let (places, after) = member.places(calls.places(), steps::ENTRIES);
                    for place in places {
                        if let Some(call) = calls.at_place(place).filter(|call| !call.cancelled) {
                            call.cancelled = true;
                            self.has_cancelled.store(true, Ordering::Release);
                            // Woken under the lock, as in `cancel_call`.
                            call.owner.wake();
                        }
                    }
                    next = after;
                }
                steps::pause(self).await;
            }
            if self.calls.lock().shuffles() == shuffles {
                return;
            }
        }
    }

    /// Returns whether one worker is left and no call; if not, `waker` is woken when something of the process has gone.
    pub(crate) fn poll_alone(&self, waker: &Waker) -> bool {
        self.poll_departed(waker, || {
            self.live_workers() == 1 && self.rings.are_at_rest() && self.calls.lock().is_empty()
        })
    }

    /// Drops everything on its way to the old program, when another one takes its place. Needs no memory: there is no
    /// way back.
    ///
    /// # Cancellation
    /// The rest is dropped at once.
    pub(crate) async fn forget_completions(&self) {
        let mut forgotten = {
            let mut completions = self.completions.lock();
            self.posted.store(0, Ordering::Release);
            self.has_waiting_completions.store(false, Ordering::Relaxed);
            self.shared.clear();
            self.shared.tell_mode(self.standing.mode());
            self.shared.tell_ceiling(self.standing.ceiling());
            completions.begin_anew(&self.shared, &self.account, MEMORY_OF_A_CALL)
        };
        self.rings.clear();
        // Their charge is given back after them.
        drop_in_steps(core::mem::take(&mut forgotten.waiting)).await;
    }

    /// Removes workers and threads that have ended, after [`keep_only`](Self::keep_only); the remaining one becomes the
    /// first worker.
    pub(crate) fn forget_others(&self, kept: &Arc<Worker>) {
        let mut workers = self.workers.lock();
        self.threads.lock().clear();
        workers.clear();
        workers.push(kept.clone());
        self.executes.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::TimeSpec;

    use crate::process::accounts::Resource;
    use crate::testing::run;

    /// A process that ends with files, calls in flight and completions that were not taken gives everything back.
    #[test]
    fn an_ended_process_leaves_nothing_behind() {
        run(|program| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let child = program.spawn(move |program| {
                let (reader, _) = program.pipe(0);
                let [soon, late] = [1_000_000, 1_000_000_000_000].map(|ns| TimeSpec::from_ns(ns).to_bytes());
                let (soon, late) = (program.store(&soon), program.store(&late));
                let place = program.place(8);
                assert_eq!(program.submit(SystemCall::Sleep, [soon, 0], 1), None);
                assert_eq!(program.submit(SystemCall::Sleep, [late, 0], 2), None);
                assert_eq!(program.submit(SystemCall::Read, [reader, place, 8], 3), None);
                program.sleep_ns(5_000_000);
                let process = program.process();
                assert_eq!(process.waiting_calls().0, 2, "one is over, and its completion was not taken");
                sender.send(process).unwrap();
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let process = receiver.recv().unwrap();
            assert!(process.has_ended() && process.waiting_calls().0 == 0 && process.live_workers() == 0);
            assert!(process.descriptors.lock().get(0).is_err());
            let account = process.account.clone();
            drop(process);
            assert_eq!(account.used(Resource::Calls), 0);
        });
    }
}
