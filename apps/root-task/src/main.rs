//! The microkernel's first program: it prints what the kernel has left for it, and runs the suite of the kernel's interface.
//!
//! The suite is written from seL4's manual and needs nothing but that interface, so that it also runs on seL4 itself; its last line is `N passed,
//! N failed`.
#![no_std]
#![no_main]

mod boot;
mod harness;
mod memory;
mod suite;

use sel4::println;

use harness::Test;

const TESTS: &[Test] = tests![
    illegal::labels_that_an_object_does_not_know,
    illegal::empty_messages,
    untyped::every_type_can_be_made,
    untyped::unknown_types_and_sizes_are_refused,
    untyped::numbers_are_limited,
    untyped::destinations_are_checked,
    untyped::a_cnode_on_the_way_can_be_the_destination,
    untyped::memory_runs_out_exactly,
    untyped::memory_is_cleared_before_it_is_used_again,
    untyped::device_memory_becomes_pages_only,
    untyped::other_capabilities_are_no_memory,
    untyped::revoking_reaches_grandchildren,
    capability::copies_moves_and_deletions,
    capability::sources_and_destinations_are_checked,
    capability::badges_are_given_once,
    capability::guards_must_fit,
    capability::mutating_moves_with_a_new_guard,
    capability::failed_searches_say_why,
    capability::long_ways_are_resolved,
    capability::a_table_can_contain_itself,
    capability::rights_only_become_fewer,
    capability::rotating,
    capability::revoking_deletes_what_was_derived,
    capability::ten_thousand_capabilities_are_revoked,
    capability::a_table_takes_its_capabilities_along,
    capability::untyped_memory_with_children_is_not_copied,
    capability::single_rights_are_not_copied,
    capability::badged_sends_are_cancelled,
    thread::registers_are_written_and_read,
    thread::register_counts_are_checked,
    thread::a_thread_does_not_touch_its_own_registers,
    thread::registers_are_copied_in_two_groups,
    thread::threads_run_stop_and_go_on,
    thread::copying_registers_stops_and_starts,
    thread::priorities_are_limited_by_the_authority,
    thread::spaces_are_checked,
    thread::ipc_buffers_are_checked,
    thread::notifications_are_bound_once,
    thread::affinity,
    thread::flags_keep_from_the_fpu,
    thread::the_thread_pointer_of_oneself_can_be_set,
    thread::a_thread_can_be_deleted_in_every_state,
    ipc::a_server_answers_its_clients,
    ipc::labels_have_fifty_two_bits,
    ipc::a_send_waits_for_its_receiver,
    ipc::a_send_that_does_not_wait_needs_a_receiver,
    ipc::the_most_important_receives_first,
    ipc::capabilities_are_transferred_with_the_right_to_grant,
    ipc::a_full_receive_slot_takes_nothing,
    ipc::the_endpoints_own_capabilities_arrive_as_badges,
    ipc::the_right_to_reply_can_be_kept,
    ipc::a_caller_without_the_right_to_be_replied_to_stops,
    ipc::callers_of_the_dead,
    ipc::replies_to_nobody_do_nothing,
    ipc::objects_of_other_kinds_are_no_endpoints,
    ipc::a_receive_slot_may_lie_in_another_table,
    notification::signals_accumulate,
    notification::one_signal_wakes_one,
    notification::a_bound_notification_interrupts_a_receive,
    notification::a_signal_before_the_receive_is_kept,
    fault::missing_pages_are_reported_and_provided,
    fault::pages_are_used_only_as_mapped,
    fault::addresses_of_the_kernel_are_no_programs,
    fault::unknown_calls_can_be_answered,
    fault::an_answer_with_a_label_leaves_the_thread_stopped,
    fault::instructions_that_do_not_exist,
    fault::capabilities_that_are_not_found,
    fault::handlers_that_are_dead_or_none,
    fault::system_calls_preserve_registers,
    address_space::tables_are_mapped_from_the_top,
    address_space::tables_go_only_where_programs_may,
    address_space::tables_that_are_in_use_stay,
    address_space::pages_show_the_same_memory_twice,
    address_space::pages_of_all_sizes_are_aligned,
    address_space::deleting_a_page_unmaps_it,
    address_space::address_spaces_are_assigned_once,
    address_space::pools_are_made_of_a_page,
    address_space::pools_run_out,
    interrupt::handlers_are_made_once,
    interrupt::handlers_signal_notifications_only,
    interrupt::an_interrupt_arrives_once_for_each_acknowledgement,
    scheduling::the_most_important_runs_first,
    scheduling::equals_take_turns,
    scheduling::a_thread_that_spins_does_not_stop_the_more_important,
    scheduling::raising_a_priority_lets_a_thread_run,
    scheduling::floating_point_registers_belong_to_their_thread,
    scheduling::a_thread_without_the_fpu_faults,
    scheduling::cores_run_at_the_same_time,
    scheduling::messages_pass_between_cores,
    scheduling::domains_are_checked,
    hostile::random_calls_concern_nobody_else,
];

#[sel4::root_task]
fn main(boot: sel4::BootInformation) {
    boot::print(&boot);
    let (passed, failed) = harness::run(&boot, TESTS);
    println!("{passed} passed, {failed} failed");
}
