# SPDX-License-Identifier: MIT
# Exit status and output of the example programs.  cmake -DMNIST=<program> -DBLOCK=<program> -P programs.cmake
cmake_minimum_required(VERSION 3.22)

# expect(STATUS REGEX PROGRAM ARGUMENT...): both streams together match.
function(expect status regex)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE got OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT got STREQUAL status OR NOT text MATCHES "${regex}")
    message(SEND_ERROR "${ARGN}\nexit status ${got}, expected ${status}; expected '${regex}' in\n${text}")
  endif()
endfunction()

expect(0 "^Usage: mnist .*--epochs N.*Exit status" ${MNIST} --help)
expect(2 "^mnist: --epochs is '0', expected a whole number from 1 to" ${MNIST} --epochs 0)
expect(2 "^mnist: '--epoch5' is no option" ${MNIST} --epoch5)
expect(2 "^mnist: --amp is 'f64', expected f32, f16 or bf16" ${MNIST} --amp f64)
expect(1 "^mnist: ATTO_E_IO: /nowhere: no train-images" ${MNIST} --data /nowhere)
expect(1 "^mnist: ATTO_E_DEVICE: .*no such thing" ${MNIST} --device "no such thing")
expect(1 "mnist: ATTO_E_IO: /nowhere/x.csv: cannot be written"
  ${MNIST} --device cpu --csv /nowhere/x.csv)
expect(1 "test images\nmnist: ATTO_E_IO: /nowhere/x.svg: cannot be written"
  ${MNIST} --device cpu --plot /nowhere/x.svg)
expect(1 "test images\nmnist: ATTO_E_ARGUMENT: --csv same.out and --plot ./same.out are the same file"
  ${MNIST} --device cpu --csv same.out --plot ./same.out)
file(REMOVE same.out)
if(EXISTS /dev/full) # Linux: every write fails for want of space
  expect(1 "^mnist: ATTO_E_IO: standard output: cannot be written: No space"
    sh -c "'${MNIST}' --device cpu --epochs 1 > /dev/full")
  expect(1 "^mnist: standard output: cannot be written: No space"
    sh -c "'${MNIST}' --help > /dev/full")
endif()
expect(0 "epoch 1/1  loss 0\\.[0-9]+  test loss 0\\.[0-9]+  test accuracy 9[0-9]\\." ${MNIST} --device cpu --epochs 1)
foreach(dtype IN ITEMS f16 bf16) # mixed precision reads no fewer digits
  expect(0 "epoch 1/1  loss 0\\.[0-9]+  test loss 0\\.[0-9]+  test accuracy 9[0-9]\\."
    ${MNIST} --device cpu --epochs 1 --amp ${dtype})
endforeach()

expect(0 "^Usage: transformer_block .*--norm-first.*Exit status" ${BLOCK} --help)
expect(2 "^transformer_block: --layers is '0', expected a whole number from 1 to" ${BLOCK} --layers 0)
expect(2 "^transformer_block: --heads is 5, which does not divide --width 32" ${BLOCK} --heads 5)
expect(2 "^transformer_block: --task is 'shuffle', expected one of sort, reverse" ${BLOCK} --task shuffle)
expect(1 "^transformer_block: ATTO_E_ARGUMENT: --symbols 2 and --length 2 give too few sequences"
  ${BLOCK} --symbols 2 --length 2)
expect(1 "^transformer_block: ATTO_E_DEVICE: .*no such thing" ${BLOCK} --device "no such thing")
expect(1 "held out\ntransformer_block: ATTO_E_SHAPE: self_attn: .*a head has 512 features"
  ${BLOCK} --device cpu --width 512 --heads 1)
expect(1 "held out\ntransformer_block: ATTO_E_IO: /nowhere/x.csv: cannot be written"
  ${BLOCK} --device cpu --csv /nowhere/x.csv)
expect(1 "transformer_block: ATTO_E_ARGUMENT: --csv same.out and --plot ./same.out are the same file"
  ${BLOCK} --device cpu --csv same.out --plot ./same.out)
file(REMOVE same.out)
# More than 99 % of the positions, whatever stands where.
set(right "(99\\.[0-9][0-9]|100\\.00) % of the positions are right")
expect(0 "epoch 4/4 .*sort: of 1000 sequences that were held out, ${right}.*->" ${BLOCK} --device cpu)
expect(0 "reverse: of 1000 sequences that were held out, ${right}" ${BLOCK} --device cpu --task reverse
  --norm-first --gelu --sinusoidal --no-bias --dropout 0.05)

# learned(VARIABLE ARGUMENT...): what a short training says at its end.
function(learned variable)
  execute_process(COMMAND ${BLOCK} --device cpu --epochs 1 --sequences 64 ${ARGN} OUTPUT_VARIABLE text)
  string(REGEX MATCH "sort: .*" text "${text}")
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()
learned(without --dropout 0)
learned(next_to_none --dropout 1e-50) # 0 as f32, which in the block's options would mean 0.1
if(NOT without OR NOT without STREQUAL next_to_none)
  message(SEND_ERROR "--dropout 1e-50 trains\n${next_to_none}\nexpected as --dropout 0\n${without}")
endif()
