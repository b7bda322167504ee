# SPDX-License-Identifier: Apache-2.0
# How ctest runs tests in parallel, and which tests give way to others.
#
# tests/run has eighteen places for two cores. A test takes one place for each sixth of a core that
# it was measured to use:
#
#    1  it only computes, at a lower priority than all others; or it mostly waits
#    2  it waits for much of its time
#    3  most tests
#    4  it computes for most of its time
#    6  it measures, or counts seconds: two more such tests may run beside it
#    8  several threads
#   16  it measures rates, which any other load would change
#
# A test with a COST starts early, while other tests wait.

# Tests that only compute and count no seconds: with `nice` they use what other tests leave.
set(computes
  "(ops|golden|sim|fuzz_regress)_.*"
  "parallel_mesh.*"
  "parallel_worker_mesh_mpirun"
  "cuda_(device|emulated|graph|stage)_?.*"
  "cuda_(clusters|exact_ptx|gemm|schedule|gpu_run)"
  "cuda_mesh(_queue|_options|_shards|_outer)?"
  "conform_comm_(mpi|socket)"
  "fault_(checkpoint_parts|ledger_faults)"
  "gpu_judge"
  "unit_(build_scale|documents|format|layering|ledger_verify|stream_world|trainer_bf16)")
list(JOIN computes "|" computes)
set(counts_seconds "^fuzz_regress_(daemon|ipc|ranks)$")
find_program(NEBULA_NICE nice)

# nebula_computes(NAME VARIABLE): sets VARIABLE to ON if the test gives way to others.
function(nebula_computes name variable)
  set(${variable} OFF PARENT_SCOPE)
  if(NEBULA_NICE AND name MATCHES "^(${computes})$" AND NOT name MATCHES "${counts_seconds}")
    set(${variable} ON PARENT_SCOPE)
  endif()
endfunction()

# nebula_add_test(NAME COMMAND...): add_test, with `nice` if the test gives way.
function(nebula_add_test name)
  nebula_computes(${name} gives_way)
  if(gives_way)
    add_test(NAME ${name} COMMAND ${NEBULA_NICE} -n 10 ${ARGN})
  else()
    add_test(NAME ${name} COMMAND ${ARGN})
  endif()
endfunction()

# nebula_tests(PROPERTY VALUE NAMES...): sets a property. An unknown name is an error, unless this
# build leaves the test out.
function(nebula_tests property value)
  foreach(name ${ARGN})
    if(TEST ${name})
      set_tests_properties(${name} PROPERTIES ${property} "${value}")
    elseif(NEBULA_FUZZ AND name MATCHES "^fuzz_regress_") # libFuzzer targets take their place
    elseif(TARGET neb_cuda_emu OR NOT name MATCHES "^cuda_") # the emulator is not left out
      message(FATAL_ERROR "${property} is set for ${name}, which is no test: was it renamed?")
    endif()
  endforeach()
endfunction()

# Call it once, after the last test.
function(nebula_schedule)
  get_property(all DIRECTORY PROPERTY TESTS)
  set_tests_properties(${all} PROPERTIES PROCESSORS 3)
  # OpenBLAS starts a thread per core in every process that loads it. A thread spins before it
  # sleeps, and no test uses it (kernels/blas.c).
  set_property(TEST ${all} APPEND PROPERTY ENVIRONMENT OPENBLAS_NUM_THREADS=1)
  # With oneDNN every process first makes machine code and tests it (kernels/blas.c), which is most
  # of the work of a short process. Tests of kernels, and e2e_local, use what is best here.
  foreach(name ${all})
    get_property(labels TEST ${name} PROPERTY LABELS)
    if(NOT labels MATCHES "unit|ops|golden|gpu" AND NOT name STREQUAL "e2e_local")
      set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT NEBULA_SGEMM=openblas)
    endif()
  endforeach()

  nebula_tests(PROCESSORS 1
    conform_nccl_faults e2e_attach e2e_distill_snapshot e2e_done_away e2e_ended e2e_follow
    e2e_late_words e2e_no_room e2e_outage e2e_page_renew e2e_page_tls e2e_proxy e2e_slow_disk
    e2e_slow_restore e2e_snapshot_line e2e_stop_slow e2e_thin_line fuzz_regress_ranks
    parallel_nebula_ranks parallel_ranks security_enrol_strangers security_first_round
    security_hostile security_hostile_leader security_hostile_rounds security_job_binding
    security_remote_worker security_revoked security_robust_away unit_ledger unit_libnebula
    unit_link unit_link_rate unit_link_strangers unit_moved unit_service unit_service_disk
    unit_web)
  nebula_tests(PROCESSORS 2
    conform_comm_mpi conform_comm_nccl_emulated cuda_graph_train cuda_mesh_queue cuda_stage
    e2e_blobs_max e2e_distill e2e_false_state e2e_groups e2e_incarnation e2e_kept_lines e2e_late
    e2e_left_behind
    e2e_members e2e_plan_tune e2e_queue_stop e2e_rejoin e2e_relay e2e_restarts e2e_resume_sites
    e2e_stop_away e2e_uneven e2e_vocabulary fault_checkpoint_parts fuzz_regress_daemon
    fuzz_regress_ipc gpu_judge security_hostile_digests security_join security_renewal
    security_undisturbed)
  nebula_tests(PROCESSORS 4
    conform_comm_socket cuda_cost_device cuda_device_train cuda_device_train_late cuda_exact_ptx
    cuda_graph_mesh cuda_graph_train_late cuda_mesh cuda_mesh_options cuda_mesh_shards
    cuda_mesh_worker cuda_plan cuda_stage_late e2e_absence e2e_bf16_modes e2e_compare
    e2e_distill_federate e2e_distill_streams e2e_divergence e2e_micro_batches e2e_numbers
    e2e_package e2e_plan e2e_rtd_share e2e_stop_overtakes e2e_tensorboard fault_ledger_faults
    ops_bf16 parallel_mesh_bf16 parallel_mesh_options parallel_mesh_shards parallel_mesh_parts
    parallel_mesh_units parallel_worker_mesh_mpirun parallel_worker_remesh security_enrol
    security_diverged security_policy_refusal security_seal_run security_secrets
    unit_bench_round unit_bench_train unit_build_scale)
  nebula_tests(PROCESSORS 8
    e2e_plan_memory e2e_rates sim_sim)

  set(measure
    net_limit security_flood security_handshake security_hostile_member e2e_blackhole e2e_doubt
    e2e_label_rate e2e_slow_join e2e_teacher_gone e2e_tune e2e_watch e2e_churn e2e_page_cost
    e2e_plan_streams parallel_slurm parallel_slurm_ranks parallel_worker_hang)
  nebula_tests(PROCESSORS 6 ${measure})
  nebula_tests(COST 100 ${measure})

  nebula_tests(COST 60
    e2e_plan e2e_thin_line e2e_late_words e2e_done_away e2e_slow_disk e2e_stop_slow security_held
    security_live_lists security_renewal e2e_distill e2e_plan_tune parallel_worker_mesh_mpirun
    e2e_kept_lines security_remote_worker)
  nebula_tests(COST 50
    sim_sim cuda_cost_device e2e_plan_memory e2e_absence cuda_mesh cuda_mesh_options
    cuda_mesh_queue cuda_mesh_shards cuda_graph_mesh cuda_plan cuda_plan_mesh cuda_gpu_run
    parallel_mesh_options parallel_mesh_ckpt e2e_jobs e2e_outage e2e_rtd e2e_rejoin
    e2e_false_state e2e_private e2e_blobs_max)

  # Its eight places are free together only at the start and at the end.
  nebula_tests(PROCESSORS 8 e2e_churn)
  nebula_tests(COST 200 e2e_churn)

  # Tests that measure rates run first. Without this rule e2e_rates would run first, since other
  # tests wait for it, and sixteen places would not become free again.
  set(rates unit_link_traffic net_wanlink net_wanlink_proxy)
  nebula_tests(PROCESSORS 16 ${rates})
  nebula_tests(COST 300 ${rates})
  nebula_tests(DEPENDS "${rates}" e2e_rates)
  nebula_tests(FIXTURES_REQUIRED rates
    e2e_jobs e2e_late e2e_plan e2e_plan_memory e2e_micro_batches e2e_sites e2e_plan_streams
    e2e_plan_tune cuda_rates cuda_plan parallel_worker_mesh_mpirun)
  nebula_tests(FIXTURES_REQUIRED device_rates cuda_gpu_run cuda_plan_mesh cuda_plan_sides)

  # tests/run --fast: all that is quick and needs no second cluster, and one run of two clusters.
  set(not_fast
    unit_build_scale unit_ledger_verify unit_libnebula unit_stream_world unit_trainer_bf16
    unit_link_traffic)
  foreach(name ${all})
    get_property(labels TEST ${name} PROPERTY LABELS)
    if((labels MATCHES "unit|ops|golden|sim|fuzz-regress" AND NOT name IN_LIST not_fast)
       OR name STREQUAL "e2e_local")
      set_property(TEST ${name} APPEND PROPERTY LABELS fast)
    endif()
  endforeach()

  # Tests that compute run two at a time, from the start on.
  set(lane 0)
  foreach(name ${all})
    nebula_computes(${name} gives_way)
    if(gives_way)
      set_tests_properties(${name} PROPERTIES
        PROCESSORS 1 COST 150 RESOURCE_LOCK computes_${lane})
      math(EXPR lane "(${lane} + 1) % 2")
    endif()
  endforeach()
endfunction()
