//! The suite that runs on the target: `tests [NAME]...` runs the tests whose names contain one of these, or all.
//!
//! Illegal calls come first: a kernel that falls over a wrong pointer makes every other result worthless. The last line
//! is `N passed, N failed`, the exit status 0 only if none failed.
#![no_std]
#![no_main]

extern crate alloc;

mod acts;
mod calls;
mod coroutines;
mod edges;
mod file;
mod harness;
mod hostile;
mod illegal;
mod interrupt;
mod limits;
mod memory;
mod models;
mod network;
mod pipe;
mod process;
mod readiness;
mod ring;
mod scheduling;
mod server;
mod terminal;
mod thread;
mod time;
mod user_interrupt;
mod worker;

use alloc::vec::Vec;
use cops::println;

use harness::Test;

const TESTS: &[Test] = tests![
    illegal::calls, 60;
    illegal::addresses, 60;
    illegal::asynchronous_forms, 60;
    process::exit_status_reaches_the_parent, 60;
    process::a_panic_ends_only_its_process, 60;
    process::waiting_synchronously, 60;
    process::killing, 60;
    process::killing_at_once, 60;
    process::executing_another_program, 60;
    process::orphans_are_taken_care_of, 60;
    process::numbers, 60;
    process::descriptors_are_passed_on, 60;
    process::damaged_programs_are_refused, 60;
    process::arguments_that_are_too_long_are_refused, 60;
    process::the_c_program_is_right, 60;
    process::many_at_once, 60;
    process::a_thousand_processes_leave_nothing_behind, 120;
    memory::pages_are_zero_and_come_at_their_first_use, 60;
    memory::parts_can_be_unmapped_and_protected, 60;
    memory::nothing_is_writable_and_executable, 60;
    memory::code_can_be_made_and_made_anew, 60;
    memory::fixed_mappings, 60;
    memory::files_can_be_mapped, 60;
    memory::the_end_of_the_heap_moves, 60;
    memory::faults_end_only_their_process, 60;
    memory::the_heap_serves_all_sizes, 60;
    memory::exhaustion_is_an_error_or_the_end_of_the_one_who_exhausts, 120;
    file::written_and_read_back, 60;
    file::appending_and_exclusive_creation, 60;
    file::positions_do_not_disturb_offsets, 60;
    file::vectors, 60;
    file::directories, 60;
    file::programs_cannot_be_changed, 60;
    file::devices, 60;
    file::duplicates_share_a_position, 60;
    file::descriptors_run_out, 60;
    pipe::synchronous, 60;
    pipe::asynchronous_as_in_the_papers, 60;
    pipe::a_full_pipe_makes_writers_wait, 60;
    pipe::the_end_wakes_who_waits, 60;
    pipe::a_ring_of_pipes, 60;
    time::clocks_agree_and_go_forward, 60;
    time::the_date_is_plausible, 60;
    time::sleeping, 60;
    time::many_sleepers_wake_in_order, 60;
    time::deadlines_come_while_the_worker_is_busy, 60;
    time::time_limits, 60;
    time::intervals, 60;
    calls::what_is_ready_is_done_in_place, 60;
    calls::errors_reach_the_awaiter_with_the_buffer, 60;
    calls::a_dropped_call_lets_go_of_its_buffer, 60;
    calls::dropped_at_every_await, 60;
    calls::a_dropped_accept_leaves_no_connection, 60;
    calls::more_completions_than_the_ring_holds, 60;
    calls::cancelling_by_hand, 60;
    calls::one_of_two, 60;
    calls::completions_without_a_token_wake_by_cid, 60;
    ring::wrong_sizes_and_numbers, 60;
    ring::malformed_requests_complete_with_an_error, 60;
    ring::the_completion_ring_can_grow, 60;
    ring::a_full_request_ring_refuses_and_loses_nothing, 60;
    ring::a_full_completion_ring_stops_the_taking, 60;
    ring::indexes_that_cannot_be_break_the_ring, 60;
    ring::the_kernel_s_words_are_not_read_by_it, 60;
    ring::unmapping_the_ring_hides_it_only, 60;
    ring::requests_are_taken_at_the_tick, 60;
    ring::an_idle_hart_takes_requests, 60;
    ring::a_sleeping_worker_s_requests_are_taken, 60;
    ring::requests_that_were_not_taken_can_be_cancelled, 60;
    ring::every_call_that_waits_works_through_the_ring, 60;
    ring::calls_are_made_directly_until_it_pays, 60;
    ring::all_at_once, 60;
    ring::dropped_at_every_await, 60;
    ring::more_in_flight_than_the_rings_hold, 60;
    ring::every_worker_has_a_ring, 60;
    ring::important_requests_do_not_wait_behind_others, 60;
    ring::processes_end_with_requests_in_their_rings, 60;
    ring::scribbling_while_the_kernel_takes, 60;
    coroutines::the_most_important_runs_first, 60;
    coroutines::the_schedulers_own_suite, 120;
    coroutines::priorities_change_in_every_state, 60;
    coroutines::results_and_cancellation, 60;
    coroutines::waking_by_cid, 60;
    coroutines::a_hundred_thousand, 60;
    coroutines::futures_of_others_run_here, 60;
    worker::all_workers_work, 60;
    worker::there_is_a_limit, 60;
    worker::values_pass_between_workers, 60;
    worker::locks_exclude, 60;
    worker::a_notification_is_kept_for_the_next, 60;
    worker::a_sleeping_worker_is_woken, 60;
    worker::idle_workers_use_no_time, 60;
    worker::calls_from_all_workers, 60;
    thread::illegal_calls, 60;
    thread::results_stacks_and_numbers, 60;
    thread::mutex_and_condition, 60;
    thread::local_values_and_registers, 60;
    thread::futexes_wake_whom_they_should, 60;
    thread::what_ends_is_told, 60;
    thread::a_thousand_at_once, 120;
    thread::thousands_one_after_the_other, 120;
    thread::ends_with_threads_in_flight, 120;
    readiness::illegal_calls, 60;
    readiness::level_edge_and_once, 60;
    readiness::event_counters, 60;
    readiness::waiters_are_woken, 60;
    readiness::sockets, 60;
    readiness::many_watched_and_closed, 60;
    readiness::lists_of_descriptors, 60;
    models::wrong_sides_are_refused, 60;
    models::calls_wait_on_every_side, 60;
    models::kernel_threads_come_and_go, 120;
    models::servers_of_coroutines, 120;
    models::servers_of_threads, 120;
    interrupt::a_busy_worker_learns_of_completions, 60;
    interrupt::less_important_completions_do_not_interrupt, 60;
    interrupt::returning_without_an_interrupt_is_an_error, 60;
    user_interrupt::errors_come_first, 60;
    user_interrupt::from_coroutine_to_coroutine, 60;
    user_interrupt::between_workers, 60;
    user_interrupt::between_processes, 60;
    user_interrupt::revoked_rights_are_worth_nothing, 60;
    user_interrupt::ends_of_either_side, 60;
    user_interrupt::as_many_receivers_as_there_can_be, 60;
    user_interrupt::more_receiving_processes_than_the_hardware_serves, 60;
    user_interrupt::nonsense_in_the_interrupt_words, 60;
    user_interrupt::a_fault_in_the_handler_ends_only_its_process, 60;
    user_interrupt::wakers_of_combinators, 60;
    user_interrupt::on_one_hart_without_the_kernel, 60;
    user_interrupt::between_harts_without_the_kernel, 60;
    network::echo, 60;
    network::synchronous_sockets, 60;
    network::half_close, 60;
    network::reset, 60;
    network::refused, 60;
    network::backlog, 60;
    network::two_hundred_and_fifty_six_connections, 60;
    network::hundreds_accept_on_one_listener, 60;
    network::datagrams, 60;
    network::options, 60;
    network::closing_wakes_who_waits, 60;
    edges::a_vector_is_one_datagram, 60;
    edges::a_short_vector_comes_out_of_a_pipe_together, 60;
    edges::errors_of_truncating, 60;
    edges::ending_in_several_places_at_once, 60;
    edges::a_handler_takes_itself_away, 60;
    terminal::lines_are_edited_before_they_are_read, 60;
    terminal::raw_keys_come_as_they_are, 60;
    terminal::keys_end_the_foreground_and_nobody_else, 60;
    terminal::groups, 60;
    limits::a_refused_accept_leaves_the_connection, 60;
    limits::more_calls_than_may_be_in_flight, 120;
    limits::who_hoards_memory_in_the_kernel_goes_first, 120;
    server::answers_every_order, 60;
    server::bad_requests_cost_their_own_connection, 60;
    server::peers_that_do_not_read_are_not_read_from, 60;
    server::connections_come_and_go, 60;
    hostile::nonsense_in_the_process_page, 60;
    hostile::nonsense_in_the_completion_ring, 60;
    hostile::processes_that_never_rest_share_the_machine, 60;
    hostile::unimportant_processes_do_not_delay_important_ones, 60;
    scheduling::illegal_requests, 60;
    scheduling::nobody_becomes_more_important_by_itself, 60;
    scheduling::processor_time_is_counted, 60;
    scheduling::strict_order_is_kept_between_processes, 60;
    scheduling::modes_change_while_coroutines_run, 60;
    scheduling::the_system_s_mode_reaches_a_busy_process, 60;
    scheduling::forged_bitmaps_count_for_no_more_than_the_ceiling, 60;
    scheduling::a_used_up_budget_puts_a_process_behind_all_others, 60;
    scheduling::snapshots_tell_what_runs, 60;
    scheduling::the_holder_of_a_lock_is_as_important_as_who_waits, 60;
    scheduling::inheritance_goes_through_several_locks, 60;
    scheduling::events_and_waiters_meet_at_keys, 60;
    scheduling::a_spinner_that_claims_everything_leaves_others_their_share, 60;
    scheduling::many_spinners_cannot_starve_anybody, 60;
    hostile::a_million_random_calls, 300;
];

#[cops::main]
async fn main() -> i32 {
    let arguments: Vec<&str> = cops::arguments().skip(1).map(|text| text.to_str().unwrap_or("?")).collect();
    match arguments[..] {
        ["--one", name] => one(name).await,
        ["--act", name] => acts::act(name, None).await,
        ["--act", name, argument, ..] => acts::act(name, Some(argument)).await,
        ["--list"] => {
            TESTS.iter().for_each(|test| println!("{}", test.name));
            0
        }
        ref names => suite(names).await,
    }
}

/// Runs one test here; what was wrong is printed.
async fn one(name: &str) -> i32 {
    let Some(test) = TESTS.iter().find(|test| test.name == name) else {
        println!("there is no test `{name}`");
        return 2;
    };
    // The suite is still on its way to waiting for us; some tests look at counters of the whole machine.
    cops::sleep(core::time::Duration::from_millis(3)).await;
    match (test.body)().await {
        Ok(()) => 0,
        Err(reason) => {
            println!("{name}: {reason}");
            1
        }
    }
}

/// Runs the tests whose names contain one of these.
async fn suite(names: &[&str]) -> i32 {
    let chosen = TESTS.iter().filter(|test| names.is_empty() || names.iter().any(|name| test.name.contains(name)));
    let (mut passed, mut failed) = (0, 0);
    for test in chosen {
        if harness::run(test).await { passed += 1 } else { failed += 1 }
    }
    println!("{passed} passed, {failed} failed");
    i32::from(failed > 0 || passed == 0)
}
