"""Groups of tests that are exhaustive: `make test` runs representatives of each, `make test-all`
runs all of them.

A group checks one claim for every model, space, page or table that the project has. While one works
on the code, a few of them say nearly as much as all. They are listed here, and nowhere else, so
that it is plain what `make test` leaves out. The time of each group is printed at the end of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

GROUPS: Mapping[str, Mapping[str, int]] = {
    # group: {test file, or file::function: how many of its tests are representatives, in their
    # order}
    "models of libraries through both exporters": {
        "search_spaces/ir/pytorch/test_exporters.py::test_exporters_and_modules_give_one_text": 2,
        "search_spaces/ir/pytorch/test_round_trip.py::test_configurations_of_hugging_face_are_spaces": 1,
        "search_spaces/test_sources.py::test_networks_of_other_libraries_are_read": 0,
        "search_spaces/test_sources.py::test_unusual_networks_are_read_exactly": 2,
        "search_spaces/subnetworks/test_networks.py::test_the_whole_network_has_the_models_outputs": 7,
        "search_spaces/subnetworks/test_networks.py::test_random_sub_networks_run_and_have_the_computed_text_"
        "and_parameters": 7,
        "search_spaces/subnetworks/test_networks.py::test_channels_that_nothing_reads_can_be_removed_without_"
        "any_change": 7,
        "search_spaces/subnetworks/test_networks.py::test_the_choices_of_a_kind_of_network": 3,
    },
    "all networks of published tables": {
        "search_spaces/published/test_nasbench201.py::test_costs_of_networks_equal_the_table": 1,
        "search_spaces/published/test_nasbench201.py::test_texts_are_one_to_one_with_the_distinct_networks": 0,
        "search_spaces/published/test_nasbench201.py::test_pruned_networks_are_6040": 0,
        "search_spaces/published/test_nasbench101.py::test_texts_are_one_to_one_with_the_isomorphism_classes_of_up_to_"
        "five_vertices": 0,
        "search_spaces/published/test_ofa.py::test_costs_of_all_networks_equal_the_table": 0,
        "search_spaces/published/test_nds.py::test_flops_of_all_darts_networks_equal_the_table": 0,
        "nas/benchmarks/test_loading.py::test_the_real_table_has_all_its_rows_and_every_cell_is_the_"
        "files": 0,
        "nas/benchmarks/test_populations.py::test_no_two_networks_of_a_random_population_share_a_text": 1,
        "stress/test_exactness.py": 0,
    },
    "conformance of every space": {
        "search_spaces/test_spaces.py::test_space_conforms": 2,
        "search_spaces/published/test_nds.py::test_space_passes_the_conformance_suite": 1,
        "search_spaces/published/test_ofa.py::test_every_promise_of_a_search_space_is_kept": 1,
        "search_spaces/ir/text/test_distinct.py::test_texts_are_one_to_one_with_computations": 2,
        "search_spaces/ir/text/test_distinct.py::test_names_and_order_do_not_change_the_text": 2,
        "search_spaces/ir/text/test_program.py::test_no_reordering_changes_the_text_of_a_network": 2,
        "nas/evaluation/test_module.py::test_random_architectures_compute_what_onnx_runtime_computes": 2,
        "nas/evaluation/test_proxies.py::test_all_are_finite_in_every_space": 2,
        "stress/test_spaces.py": 1,
    },
    "every runtime, storage, signal and size of a screen": {
        "nas/evaluation/test_runtimes.py::test_a_converted_network_computes_the_same_and_is_timed": 2,
        # Each kind of trouble is a test of `make test`, outside of a search.
        "nas/evaluation/test_runtimes.py::test_a_search_goes_on_after_a_converter_in_trouble_and_reports_it": 0,
        "nas/evaluation/test_device_command.py::test_a_command_gets_the_file_of_its_runtime": 2,
        "nas/cli/test_terminations.py::test_a_terminated_search_and_worker_give_their_trials_back": 1,
        "nas/cli/test_terminations.py::test_a_terminated_comparison_ends_at_once_and_keeps_its_scores": 1,
        # The same claim about a journal is a test of `make test`.
        "nas/search/test_workers.py::test_workers_of_many_machines_reclaim_what_vanished_ones_left_in_a_database": 0,
        "nas/report/test_page.py::test_the_page_fits_wide_and_narrow_screens_in_light_and_dark": 1,
        "nas/report/test_page.py::test_the_page_has_no_accessibility_violations": 1,
        "search_spaces/common/test_process.py::test_the_command_line_uses_one_thread_unless_the_user_says_"
        "otherwise": 1,
        "search_spaces/common/test_process.py::test_libraries_that_a_comparison_loads_for_its_first_score_use_one_"
        "thread_too": 1,
        "search_spaces/common/test_process.py::test_a_number_that_the_user_has_set_is_kept_in_python": 1,
    },
    "every sampler": {
        "nas/search/test_dependent_options.py::test_every_sampler_evaluates_the_whole_space": 5,
        "nas/search/test_rows.py::test_a_partial_table_is_searched_among_its_rows_by_any_sampler": 4,
        "nas/search/test_loop.py::test_every_plain_sampler_evaluates_the_wanted_number_of_distinct_architectures": 4,
        # Every sampler with the largest number of objectives
        "nas/search/test_many_objectives.py::test_a_search_ends_with_progress_result_and_reference": 4,
    },
    "shipped checkpoints on another machine": {
        # The claims themselves are tests of `make test`, with a checkpoint that is made for them.
        "nas/test_another_machine.py::test_a_shipped_checkpoint_recognises_its_examples_with_other_arithmetic": 1,
        "nas/test_another_machine.py::test_a_device_like_a_known_one_is_predicted_from_it_with_other_arithmetic": 0,
    },
    "examples and the wheel": {
        "examples/test_examples.py::test_an_example_runs_to_its_end": 1,
        "examples/test_examples.py::test_the_cells_of_a_notebook_run_in_their_order": 1,
        # `make test` builds the wheel and reads its list of files; these install it.
        "test_wheel.py::test_commands_of_the_wheel_work": 0,
        "test_wheel.py::test_experiments_are_not_needed": 0,
    },
    "statistics of many draws": {
        "predictors/rlm/test_tuning.py::test_fitted_kernels_rank_networks_better_from_many_examples": 0,
        "experiments/pretraining/test_random_tasks.py::test_queries_lie_beyond_their_examples_as_often_as_the_"
        "prior_says": 0,
    },
    "any number of processes": {
        # Predictions of several processes are tested in `make test`.
        "nas/cli/test_cli.py::test_compare_gives_the_same_scores_with_any_number_of_processes": 0,
        "experiments/test_tables.py::test_two_processes_compute_the_rows_of_one": 0,
        "nas/benchmarks/test_table.py::test_texts_of_a_large_table_are_made_in_a_script_without_a_main_"
        "guard": 0,
        "nas/search/test_bound_values.py::test_digests_are_equal_in_every_process": 1,
        # `test_own_sampler.py` has the claim about one file.
        "nas/search/test_bound_values.py::test_helper_processes_find_files_of_equal_names_and_moved_"
        "ones": 0,
        # Fewer kills are tested in `make test`.
        "nas/search/test_by_cost.py::test_kills_and_several_workers_lose_and_duplicate_nothing": 1,
        "nas/search/test_loop.py::test_killing_a_search_loses_and_repeats_nothing": 1,
    },
    "quick runs of experiments": {
        "experiments/test_ablation.py": 0,
        "experiments/test_sub_networks.py::test_the_quick_comparison_runs_to_its_end_and_resumes": 1,
        "experiments/test_quick.py": 0,
        "experiments/test_quick.py::test_a_family_that_was_not_trained_is_named_with_its_remedy": 1,
        "experiments/test_quick.py::test_latencies_are_learned_if_requested": 1,
        "experiments/test_runtimes.py::test_the_rlm_reads_texts_and_known_runtimes": 1,
        "experiments/test_unseen_searches.py::test_no_sampler_trains_a_network_that_breaks_the_limit": 1,
        "experiments/test_unseen_searches.py::test_costs_of_the_published_networks_are_counted": 0,
        "experiments/test_unseen_searches.py::test_a_floor_leaves_poor_networks_out_of_the_front": 0,
        "experiments/test_real_search.py::test_a_finished_search_is_read_and_not_run_again": 0,
        "experiments/test_pareto.py": 1,
        "experiments/test_front_by_cost.py": 0,
        "experiments/test_zoo.py": 2,
        "experiments/programs/test_programs.py": 2,
        "experiments/pretraining/test_corpus.py": 1,
        "experiments/pretraining/test_short_trainings.py": 2,
        "stress/test_fuzz.py": 1,
        "stress/test_killed.py": 0,
    },
    "blocks of the documentation": {
        "docs/test_pages.py::test_every_block_of_a_page_runs": 2,
        "docs/test_pages.py::test_every_block_about_spaces_runs": 0,
        "docs/test_pages.py::test_every_block_about_predictors_runs": 0,
        "docs/test_pages.py::test_every_block_about_models_of_libraries_runs": 0,
        "docs/test_pages.py::test_every_block_about_training_runs_and_the_shipped_network_has_the_reported_accuracy": 0,
        "docs/test_pages.py::test_one_page_of_ones_own_ends_with_a_front_of_trained_networks": 0,
    },
    "searches of the demo's table": {
        "nas/comparison/test_studies.py::test_a_search_of_the_demos_table_is_ahead_of_random_after_20_evaluations": 0,
    },
    "exports to text and back": {
        "search_spaces/ir/onnx/test_any_onnx.py::test_export_becomes_text_and_a_model_again": 2,
        "search_spaces/ir/onnx/test_any_onnx.py::test_exporters_of_torch_give_one_text": 1,
        "search_spaces/ir/onnx/test_any_onnx.py::test_params_are_those_that_torch_counts": 2,
        "search_spaces/ir/onnx/test_any_onnx.py::test_batch_normalization_is_there_folded_by_the_exporter_or_not": 2,
        "search_spaces/ir/onnx/test_hostile_sizes.py": 3,
        "search_spaces/ir/onnx/test_onnx_suite.py::test_models_of_the_onnx_package_are_fixed_points_or_refused": 0,
    },
}


def group_of(test: str) -> tuple[str, str] | None:
    """The group of a test, and the entry that lists it; None if it is in no group.

    Args:
        test: id of the test relative to `tests/`, as in
            `docs/test_site.py::test_the_site_is_built`.
    """
    function = test.partition("[")[0]
    for group, entries in GROUPS.items():
        for entry in (function, function.partition("::")[0]):
            if entry in entries:
                return group, entry
    return None


def left_out(tests: Iterable[str]) -> set[str]:
    """The tests that `make test` leaves out: all of a group but its representatives."""
    taken: Counter[str] = Counter()
    exhaustive = set()
    for test in tests:
        if (listed := group_of(test)) is None:
            continue
        group, entry = listed
        taken[entry] += 1
        if taken[entry] > GROUPS[group][entry]:
            exhaustive.add(test)
    return exhaustive
