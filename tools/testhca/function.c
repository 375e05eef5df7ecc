// SPDX-License-Identifier: GPL-2.0
/*
 * What a device lies on: a function of the PCI bus, whose DMA mappings it has then; QEMU's "edu"
 * (-device edu) does nothing of its own. A kernel without such functions, as User Mode Linux is,
 * gets faux devices, whose DMA addresses are physical.
 */
#include <linux/device/faux.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/wait.h>
#include "testhca.h"

#define EDU_VENDOR 0x1234
#define EDU_DEVICE 0x11e8

static bool faux;
module_param(faux, bool, 0644);
MODULE_PARM_DESC(faux, "take faux devices where there is no PCI function (N)");

static bool min_align;
module_param(min_align, bool, 0444);
MODULE_PARM_DESC(min_align, "what is bounced keeps its offset in the page, as nvme wants it, and no HCA (N)");

struct thca_function {
	struct list_head node;
	struct device *dev;
	struct faux_device *faux;
	struct device_dma_parameters parms;
	/* What lies on it. */
	struct thca_dev *hca;
};

static LIST_HEAD(functions);
static DEFINE_MUTEX(lock);
static DECLARE_WAIT_QUEUE_HEAD(released);
static atomic_t names;

struct device *thca_function_device(struct thca_function *function)
{
	return function->dev;
}

static struct thca_function *faux_create(void)
{
	struct thca_function *function = kzalloc_obj(*function);
	char name[32];
	struct device *dev;

	if (!function)
		return NULL;
	snprintf(name, sizeof(name), "testhca-%d", atomic_inc_return(&names));
	function->faux = faux_device_create(name, NULL, NULL);
	if (!function->faux) {
		kfree(function);
		return NULL;
	}
	dev = &function->faux->dev;
	function->dev = dev;
	dev->dma_parms = &function->parms;
	dma_set_max_seg_size(dev, UINT_MAX);
	if (dma_coerce_mask_and_coherent(dev, DMA_BIT_MASK(64))) {
		faux_device_destroy(function->faux);
		kfree(function);
		return NULL;
	}
	return function;
}

/* A function that nothing lies on, for this device; NULL if there is none. */
struct thca_function *thca_function_get(struct thca_dev *hca)
{
	struct thca_function *function, *found = NULL;

	mutex_lock(&lock);
	list_for_each_entry(function, &functions, node) {
		if (!function->hca) {
			found = function;
			break;
		}
	}
	if (!found && faux) {
		found = faux_create();
		if (found)
			list_add_tail(&found->node, &functions);
	}
	if (found)
		found->hca = hca;
	mutex_unlock(&lock);
	return found;
}

/* The device has gone. */
void thca_function_put(struct thca_function *function)
{
	mutex_lock(&lock);
	if (function->faux) {
		list_del(&function->node);
		faux_device_destroy(function->faux);
		kfree(function);
	} else {
		function->hca = NULL;
	}
	mutex_unlock(&lock);
	wake_up_all(&released);
}

#ifdef CONFIG_PCI
static bool is_free(struct thca_function *function)
{
	bool yes;

	mutex_lock(&lock);
	yes = !function->hca;
	mutex_unlock(&lock);
	return yes;
}

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct thca_function *function;
	int ret;

	ret = pcim_enable_device(pdev);
	if (ret)
		return ret;
	pci_set_master(pdev);
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);
	if (min_align)
		dma_set_min_align_mask(&pdev->dev, PAGE_SIZE - 1);
	function = kzalloc_obj(*function);
	if (!function)
		return -ENOMEM;
	function->dev = &pdev->dev;
	pci_set_drvdata(pdev, function);
	mutex_lock(&lock);
	list_add_tail(&function->node, &functions);
	mutex_unlock(&lock);
	return 0;
}

/* The function is unplugged, or the module goes: what lies on it goes first. */
static void remove(struct pci_dev *pdev)
{
	struct thca_function *function = pci_get_drvdata(pdev);
	struct thca_dev *hca;

	/* No device that is just being registered: see thca_add(). */
	mutex_lock(&thca_link_mutex);
	mutex_lock(&lock);
	list_del(&function->node);
	hca = function->hca;
	if (hca && !ib_device_try_get(&hca->ib))
		hca = NULL;
	mutex_unlock(&lock);
	mutex_unlock(&thca_link_mutex);
	/* There is no hardware any more: no peer answers, and none is answered. */
	if (hca)
		thca_set_link(hca, false);
	if (hca)
		ib_unregister_device_and_put(&hca->ib);
	wait_event(released, is_free(function));
	kfree(function);
}

/* No alias is made of these: nobody wants this driver unasked. */
static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(EDU_VENDOR, EDU_DEVICE) },
	{}
};

static struct pci_driver driver = {
	.name = "testhca",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
};

static int pci_init(void)
{
	return pci_register_driver(&driver);
}

static void pci_exit(void)
{
	pci_unregister_driver(&driver);
}
#else
static int pci_init(void)
{
	return 0;
}

static void pci_exit(void)
{
}
#endif

/* Removes a device that lies on a faux device. Returns false if there is none left. */
static bool remove_faux(void)
{
	struct thca_function *function;
	struct thca_dev *hca = NULL;
	bool any = false;

	mutex_lock(&lock);
	list_for_each_entry(function, &functions, node) {
		if (!function->faux)
			continue;
		any = true;
		if (ib_device_try_get(&function->hca->ib)) {
			hca = function->hca;
			break;
		}
	}
	mutex_unlock(&lock);
	if (hca)
		ib_unregister_device_and_put(&hca->ib);
	else if (any)
		schedule_timeout_uninterruptible(1);
	return any;
}

int thca_functions_init(void)
{
	return pci_init();
}

/* No device is made any more. */
void thca_functions_exit(void)
{
	while (remove_faux())
		;
	pci_exit();
}
