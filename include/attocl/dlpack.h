/* SPDX-License-Identifier: MIT */
/* DLPack: tensors to and from other libraries in one process (https://dmlc.github.io/dlpack).
 *
 * Both forms: DLManagedTensorVersioned of DLPack 1 and the older DLManagedTensor, as dlpack.h
 * declares them, which need not be included. Devices: kDLCPU, on the CPU backend and wherever
 * atto_tensor_wrap works; kDLOpenCL, whose data is a cl_mem. Element types: floats of 32 and 16 bits,
 * bfloat16, signed integers of 32 and 64 bits; one lane.
 *
 * A managed tensor has one owner. An import that succeeds takes it over and calls its deleter once,
 * when the last tensor of the buffer is freed; one that fails leaves it to the caller. An exported
 * one belongs to whoever gets it, who calls its deleter. */
#ifndef ATTOCL_DLPACK_H
#define ATTOCL_DLPACK_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/**
 * A tensor on memory of another library, without a copy.
 *
 * Work of the other library on that memory must be over, or ordered by atto_opencl_wait. Strides
 * and byte_offset are kept; no strides mean dense. An import that is flagged as read-only makes a
 * tensor that no op writes to (ATTO_E_STATE).
 *
 * @param dev      where the tensor is to live: the memory must be its own
 * @param managed  taken over on success
 * @param out      the tensor; zeroed on failure. Release it with atto_tensor_free
 * Returns         ATTO_E_NULL (dev, managed, out, data of a tensor that is not empty),
 *                 ATTO_E_VERSION (major version other than 1), ATTO_E_DEVICE (a kind of device that
 *                 dev is not, memory of another context), ATTO_E_DTYPE (type, lanes), ATTO_E_SHAPE
 *                 (rank, sizes, memory too small), ATTO_E_STRIDE (a negative stride),
 *                 ATTO_E_ARGUMENT (byte_offset divides no element), ATTO_E_UNSUPPORTED (dev cannot
 *                 use host memory), ATTO_E_MEMORY, ATTO_E_LOST
 */
ATTO_API atto_status atto_tensor_from_dlpack(atto_device *dev,
                                             struct DLManagedTensorVersioned *managed,
                                             atto_tensor *out);
ATTO_API atto_status atto_tensor_from_dlpack_unversioned(atto_device *dev,
                                                         struct DLManagedTensor *managed,
                                                         atto_tensor *out);

/**
 * A tensor for another library, without a copy. Waits for the device, so that what has been
 * computed is there; holds the buffer until the deleter is called, on any thread that may use the
 * device.
 *
 * The device is kDLCPU or kDLOpenCL, its number the position in atto_device_list (0 for a device
 * that is not in the list). Strides are always written. A tensor that is read-only is flagged in
 * DLPack 1, and refused by the older form, which cannot say so.
 *
 * @param out  NULL on failure; call its deleter
 * Returns     ATTO_E_NULL, ATTO_E_STATE (mapped; read-only and unversioned), ATTO_E_MEMORY,
 *             ATTO_E_INDEX (data errors of earlier calls), ATTO_E_BACKEND, ATTO_E_LOST, and what an
 *             op says of a bad view
 */
ATTO_API atto_status atto_tensor_to_dlpack(const atto_tensor *t,
                                           struct DLManagedTensorVersioned **out);
ATTO_API atto_status atto_tensor_to_dlpack_unversioned(const atto_tensor *t,
                                                       struct DLManagedTensor **out);

#ifdef __cplusplus
}
#endif

#endif
